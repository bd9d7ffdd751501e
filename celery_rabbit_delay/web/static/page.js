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

// The selector that finds an element again after its part of the page was replaced.
function selector(element) {
  if (element.id) return `#${CSS.escape(element.id)}`;
  const link = element.getAttribute("href");
  if (link) return `a[href="${CSS.escape(link)}"]`;
  return element.name && element.value ? `[name="${element.name}"][value="${CSS.escape(element.value)}"]` : "";
}

function replace(fresh) {
  document.title = fresh.title;
  const checked = new Set(chosen().map((box) => box.value));
  const every = matching() !== null;
  const focused = selector(document.activeElement);
  for (const old of all("[data-live]")) {
    const now = fresh.getElementById(old.id);
    if (!now || now.innerHTML === old.dataset.was) continue;
    old.dataset.was = now.innerHTML;
    for (const open of old.querySelectorAll("details[open]")) {
      const same = now.querySelector(`#${open.id}`);
      if (same) same.open = true;
    }
    old.replaceChildren(...now.childNodes);
  }
  for (const box of boxes()) box.checked = checked.has(box.value);
  for (const box of all("[name=matching]")) box.checked = every;
  if (focused && document.activeElement === document.body) {
    document.querySelector(focused)?.focus({ preventScroll: true });
  }
  count();
}

async function refresh() {
  try {
    const answer = await fetch(location.href, { redirect: "error" });
    if (answer.ok) replace(await parse(answer));
    document.documentElement.classList.toggle("stale", !answer.ok);
  } catch {
    document.documentElement.classList.add("stale"); // the server is down; the next refresh tries again
  }
}

async function live() {
  if (!document.hidden) await refresh();
  setTimeout(live, EVERY);
}

// Sends a form and shows the answer in its place, so that neither the view nor the focus moves.
async function send(form, button) {
  const place = boxes().indexOf(chosen()[0]);
  const body = new URLSearchParams(new FormData(form, button));
  form.inert = true;
  try {
    const answer = await fetch(button.formAction, { method: "POST", body });
    if (answer.redirected && new URL(answer.url).pathname !== location.pathname) return location.assign(answer.url);
    const fresh = await parse(answer);
    if (answer.ok) replace(fresh);
    document.querySelector(".messages").replaceChildren(...fresh.querySelectorAll(".message"));
    setTimeout(() => all(".message.good").forEach((message) => message.remove()), READ);
    for (const field of form.querySelectorAll(".move [name]")) field.value = "";
    for (const box of all("[name=matching]")) box.checked = false;
    count();
  } catch {
    document.documentElement.classList.add("stale");
  } finally {
    form.inert = false;
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
  if (event.target.matches(".messages .message")) event.target.remove();
});

document.addEventListener("submit", (event) => {
  const button = event.submitter;
  const question = button?.dataset.confirm ?? (amount() > 1 ? button?.dataset.confirmSeveral : undefined);
  if (question && !confirm(question.replace("{n}", amount().toLocaleString("en")))) return event.preventDefault();
  if (event.target.id === "selection" && button) {
    event.preventDefault();
    send(event.target, button);
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
    "/": () => document.getElementById("q")?.focus(),
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

if (document.querySelector("[data-live]") && !document.querySelector("form.search :focus")) {
  count();
  setTimeout(live, isNew ? 0 : EVERY);
}
