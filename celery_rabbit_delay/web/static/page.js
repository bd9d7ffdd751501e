// Refreshes the page without reloading it, and handles the keyboard shortcuts.
"use strict";

const EVERY = 2000; // milliseconds

// The server writes times in the viewer's zone.
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
const isNew = zone && !document.cookie.split("; ").includes(`zone=${zone}`);
if (isNew) document.cookie = `zone=${zone}; path=/; max-age=31536000; samesite=strict`;

const chosen = () => [...document.querySelectorAll("#rows tbody input:checked")];

function count() {
  const selected = chosen().length;
  const label = document.getElementById("selected");
  if (label) label.textContent = selected ? `${selected} selected` : "Nothing selected";
  document.getElementById("acts")?.classList.toggle("ready", selected > 0);
  const all = document.getElementById("all");
  if (all) all.checked = selected > 0 && selected === document.querySelectorAll("#rows tbody [type=checkbox]").length;
}

function replace(fresh) {
  document.title = fresh.title;
  const checked = new Set(chosen().map((box) => box.value));
  const focused = document.activeElement;
  const where = focused?.id || (focused?.value && focused?.name ? `${focused.name}=${focused.value}` : "");
  for (const old of document.querySelectorAll("[data-live]")) {
    const now = fresh.getElementById(old.id);
    if (!now || now.innerHTML === old.dataset.was) continue;
    old.dataset.was = now.innerHTML;
    old.replaceChildren(...now.childNodes);
  }
  for (const box of document.querySelectorAll("#rows tbody [type=checkbox]")) {
    box.checked = checked.has(box.value);
    if (where === `${box.name}=${box.value}`) box.focus({ preventScroll: true });
  }
  if (where && document.activeElement === document.body) {
    document.getElementById(where)?.focus({ preventScroll: true });
  }
  count();
}

async function refresh() {
  try {
    const answer = await fetch(location.href, { headers: { "X-Live": "1" }, redirect: "error" });
    if (answer.ok) replace(new DOMParser().parseFromString(await answer.text(), "text/html"));
    document.documentElement.classList.toggle("stale", !answer.ok);
  } catch {
    document.documentElement.classList.add("stale"); // the server is down; the next refresh tries again
  }
}

async function live() {
  if (!document.hidden) await refresh();
  setTimeout(live, EVERY);
}

document.addEventListener("change", (event) => {
  if (event.target.id === "all") {
    for (const box of document.querySelectorAll("#rows tbody [type=checkbox]")) box.checked = event.target.checked;
  }
  if (event.target.closest("#rows")) count();
});

document.addEventListener("submit", (event) => {
  const question = event.submitter?.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const at = document.activeElement;
  if (event.key === "Escape" && at) return at.blur();
  if (at?.matches("input:not([type=checkbox]), select, textarea")) return;
  const links = [...document.querySelectorAll("#rows a.open")];
  const row = at?.closest("#rows tr");
  const place = links.findIndex((link) => link.closest("tr") === row);
  const actions = {
    "/": () => document.getElementById("q")?.focus(),
    j: () => links[Math.min(place + 1, links.length - 1)]?.focus(),
    k: () => links[Math.max(place - 1, 0)]?.focus(),
    x: () => row?.querySelector("input[type=checkbox]")?.click(),
    n: () => document.getElementById("next")?.click(),
    p: () => document.getElementById("previous")?.click(),
  };
  if (actions[event.key]) {
    event.preventDefault();
    actions[event.key]();
  }
});

if (document.querySelector("[data-live]") && !document.querySelector("form.search :focus")) {
  count();
  setTimeout(live, isNew ? 0 : EVERY);
}
