// Refreshes the page without reloading it, sends the forms of its tables, and handles the keyboard.
"use strict";

const EVERY = 2000; // milliseconds
const READ = 10000; // after which a good message goes; a bad one goes with Escape or a click

// The server writes times in the viewer's zone.
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
const isNew = zone && !document.cookie.split("; ").includes(`zone=${zone}`);
if (isNew) document.cookie = `zone=${zone}; path=/; max-age=31536000; samesite=strict`;

document.documentElement.classList.add("script");

const all = (css) => [...document.querySelectorAll(css)];
const boxes = () => all("#rows tbody [type=checkbox]");
const chosen = () => boxes().filter((box) => box.checked);
const matching = () => document.querySelector("[name=matching]:checked");
const amount = () => Number(matching()?.dataset.amount ?? chosen().length);
const parse = async (answer) => new DOMParser().parseFromString(await answer.text(), "text/html");

function count() {
  const selected = chosen();
  const label = document.getElementById("selected");
  if (label) label.textContent = amount() ? `${amount()} selected` : "Nothing selected";
  document.getElementById("acts")?.classList.toggle("ready", amount() > 0);
  for (const button of all("[formaction$='/replay']")) {
    button.disabled = (button.name ? boxes() : selected).every((box) => "refused" in box.dataset);
  }
  const every = document.getElementById("all");
  if (every) every.checked = selected.length > 0 && selected.length === boxes().length;
}

// What tells an element from others of its parent; texts and most elements are told by their place.
const key = (node) => node.dataset?.key || node.id || "";

// Makes an element like a fresh one. What is in both stays the same node: so do the focus, selections and what is open.
function update(old, fresh) {
  for (const name of new Set([...old.getAttributeNames(), ...fresh.getAttributeNames()])) {
    const value = fresh.getAttribute(name);
    if (name === "open" || value === old.getAttribute(name)) continue;
    if (value === null) old.removeAttribute(name);
    else old.setAttribute(name, value);
  }
  const named = new Map([...old.children].filter(key).map((child) => [key(child), child]));
  const others = [...old.childNodes].filter((node) => !key(node));
  const wanted = [...fresh.childNodes].map((node) => {
    const same = key(node) ? named.get(key(node)) : others.shift();
    if (same?.nodeName !== node.nodeName) return node;
    if (same.nodeType === Node.ELEMENT_NODE) update(same, node);
    else if (same.data !== node.data) same.data = node.data;
    return same;
  });
  const stays = wanted.length === old.childNodes.length && wanted.every((node, at) => node === old.childNodes[at]);
  if (!stays) old.replaceChildren(...wanted);
}

function replace(fresh) {
  document.title = fresh.title;
  const focused = document.activeElement;
  for (const old of all("[data-live]")) {
    const now = fresh.getElementById(old.id);
    if (now) update(old, now);
  }
  if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
  count();
}

let pointed = null; // the row, the bar or the filter under a mouse

// Why nothing is refreshed just now, if so: rows must not move under a pointer, nor text that is being selected.
function pause() {
  if (sessionStorage.paused) return "paused";
  if (!getSelection().isCollapsed) return "paused: selection";
  return pointed?.isConnected ? "paused: pointer" : "";
}

function tell() {
  const button = document.getElementById("live");
  if (!button) return;
  const why = pause();
  button.hidden = false;
  const isStale = document.documentElement.classList.contains("stale");
  button.textContent = why || (isStale ? "no answer" : "live");
  button.title = sessionStorage.paused ? "Refresh every two seconds" : "Pause";
  button.classList.toggle("good", !why && !isStale);
  button.setAttribute("aria-pressed", String(Boolean(sessionStorage.paused)));
}

async function refresh() {
  try {
    const answer = await fetch(location.href, { redirect: "error" });
    const fresh = await parse(answer);
    if (answer.ok && !pause()) replace(fresh);
    document.documentElement.classList.toggle("stale", !answer.ok);
  } catch {
    document.documentElement.classList.add("stale"); // the server is down; the next refresh tries again
  }
  tell();
}

async function live() {
  if (!document.hidden && !pause()) await refresh();
  setTimeout(live, EVERY);
}

// Shows that a form was sent, until its answer is there.
function busy(button, is) {
  button.ariaBusy = is ? "true" : null;
  document.documentElement.classList.toggle("busy", is);
}

// Sends a form and shows the answer in its place, so that neither the view nor the focus moves.
async function send(form, button) {
  const place = boxes().indexOf(chosen()[0]);
  const body = new URLSearchParams(new FormData(form, button));
  form.inert = true;
  busy(button, true);
  try {
    const answer = await fetch(button.formAction, { method: "POST", body });
    document.documentElement.classList.remove("stale");
    if (answer.redirected && new URL(answer.url).pathname !== location.pathname) return location.assign(answer.url);
    const fresh = await parse(answer);
    if (answer.ok) replace(fresh);
    document.querySelector(".messages").replaceChildren(...fresh.querySelectorAll(".message"));
    setTimeout(() => all(".message.good").forEach((message) => message.remove()), READ);
    if (!fresh.querySelector(".message.bad")) for (const field of form.querySelectorAll(".move [name]")) field.value = "";
    for (const box of all("[name=matching]")) box.checked = false;
    count();
  } catch {
    const message = Object.assign(document.createElement("p"), { className: "message bad" });
    message.textContent = "There is no answer, so it is unknown whether that was done: look again.";
    document.querySelector(".messages").replaceChildren(message);
    document.documentElement.classList.add("stale");
    tell();
  } finally {
    form.inert = false;
    busy(button, false);
  }
  const left = boxes();
  (left[Math.min(place, left.length - 1)] ?? document.getElementById("main")).focus({ preventScroll: true });
}

function copy(button) {
  getSelection().selectAllChildren(button.parentElement.querySelector("code"));
  document.execCommand("copy"); // unlike navigator.clipboard, also without TLS
  getSelection().removeAllRanges();
  button.classList.add("done");
  setTimeout(() => button.classList.remove("done"), 1500);
}

document.addEventListener("change", (event) => {
  if (event.target.id === "all") {
    for (const box of boxes()) box.checked = event.target.checked;
  }
  if (event.target.closest("#selection")) count();
});

document.addEventListener("click", (event) => {
  for (const menu of all("details.menu[open]")) {
    if (!menu.contains(event.target)) menu.open = false;
  }
  if (event.target.matches(".copy")) copy(event.target);
  if (event.target.id === "live") {
    sessionStorage.paused = sessionStorage.paused ? "" : "yes";
    tell();
  }
  if (event.target.matches(".messages .message")) event.target.remove();
});

document.addEventListener("submit", (event) => {
  const button = event.submitter;
  const question = button?.dataset.confirm ?? (amount() > 1 ? button?.dataset.confirmSeveral : undefined);
  if (question && !confirm(question.replace("{n}", amount().toLocaleString("en")))) return event.preventDefault();
  if (event.target.id === "selection" && button) {
    event.preventDefault();
    send(event.target, button);
  } else if (event.target.method === "post" && button) {
    busy(button, true);
  }
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const at = document.activeElement;
  if (event.key === "Escape" && at) {
    at.closest("details.menu")?.removeAttribute("open");
    document.querySelector(".messages").replaceChildren();
    return at.blur();
  }
  if (at?.matches("input:not([type=checkbox]), select, textarea")) return;
  const links = all("#rows a.open");
  const row = at?.closest("#rows tr");
  const place = links.findIndex((link) => link.closest("tr") === row);
  const open = row?.querySelector("a.open");
  const actions = {
    "/": () => ["focus", "select"].forEach((act) => document.getElementById("q")?.[act]()),
    j: () => links[Math.min(place + 1, links.length - 1)]?.focus(),
    k: () => links[Math.max(place - 1, 0)]?.focus(),
    x: () => row?.querySelector("input[type=checkbox]")?.click(),
    c: () => row?.querySelector(".copy")?.click(),
    n: () => document.getElementById("next")?.click(),
    p: () => document.getElementById("previous")?.click(),
  };
  if (at?.matches("#rows [type=checkbox]")) actions.Enter = () => open?.click(); // and not the form's first button
  if (actions[event.key]) {
    event.preventDefault();
    actions[event.key]();
  }
});

addEventListener("pageshow", () => all("[aria-busy]").forEach((button) => busy(button, false)));

if (document.querySelector("main [data-live]")) {
  count();
  document.addEventListener("selectionchange", tell);
  for (const name of ["pointerover", "pointerleave"]) {
    document.addEventListener(name, ({ type, target, pointerType }) => {
      const isOver = type === "pointerover" && pointerType === "mouse";
      pointed = isOver ? target.closest("#rows tbody tr, #beat tbody tr, #filters li, #plot a") : null;
      tell();
    });
  }
  tell();
  setTimeout(live, isNew ? 0 : EVERY);
}
