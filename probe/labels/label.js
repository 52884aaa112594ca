// Turns to label, one by one; page.js stands before it.

const DATA = JSON.parse(byId("data").textContent);
const KEPT = `labels ${DATA.store}`;
const buttons = [...document.querySelectorAll("#answer [data-label]")];
const answers = JSON.parse(stored(KEPT) || "{}"); // place of a turn -> [label, sure]
let at = 0;

function read() {
  return Object.keys(answers).length;
}

/** The next turn without a label, around the end; the same one where there is none. */
function nextLeft(start) {
  for (let step = 0; step < DATA.turns.length; step += 1) {
    const place = (start + step) % DATA.turns.length;
    if (!answers[place]) return place;
  }
  return at;
}

function show() {
  const one = DATA.turns[at];
  const all = DATA.turns.length;
  byId("count").textContent = all ? `Turn ${at + 1} of ${all}; ${read()} labelled${read() === all ? ", all of them: save the file" : ""}` : "Nothing is left to label";
  const shown = byId("turn");
  shown.replaceChildren();
  if (one) {
    for (const message of one.messages) shown.append(turn(message.role, visibleText(message.role), message.content, "", Infinity));
    const who = `written next, in the user's place${one.cut ? " (cut at the token limit: a missing end says nothing)" : ""}`;
    shown.append(turn("user", who, one.user_turn, "next", Infinity));
  }
  const [label, sure] = answers[at] || [null, true];
  for (const button of buttons) {
    button.setAttribute("aria-pressed", String(button.dataset.label === label));
    button.disabled = !one;
  }
  byId("unsure").checked = !sure;
  byId("back").disabled = at === 0;
  byId("next").disabled = at >= all - 1;
  byId("save").disabled = read() === 0;
}

function go(place) {
  at = Math.max(0, Math.min(place, DATA.turns.length - 1));
  show();
  byId("turn").focus({ preventScroll: true });
  byId("turn").scrollIntoView({ block: "nearest" });
}

function keep(label) {
  if (!DATA.turns.length) return;
  answers[at] = [label, !byId("unsure").checked];
  stored(KEPT, JSON.stringify(answers));
  if (read() === 1) byId("guide").open = false; // room for the turns; ? opens it again
  go(nextLeft(at + 1));
}

/** A change of mind about being sure counts for a turn that has a label already. */
function keepUnsure() {
  if (!answers[at]) return;
  answers[at][1] = !byId("unsure").checked;
  stored(KEPT, JSON.stringify(answers));
}

function save() {
  const rows = Object.entries(answers).map(([place, [label, sure]]) => ({ ...DATA.turns[place], label, sure }));
  const link = element("a", "");
  link.href = URL.createObjectURL(new Blob(rows.map(row => `${JSON.stringify(row)}\n`), { type: "application/jsonl" }));
  link.download = "labels.jsonl";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  const unsure = byId("unsure");
  const actions = {
    u: () => { unsure.checked = !unsure.checked; keepUnsure(); },
    b: () => go(at - 1),
    n: () => go(at + 1),
    "?": () => { byId("guide").open = !byId("guide").open; },
  };
  const action = DATA.keys[event.key] ? () => keep(DATA.keys[event.key]) : actions[event.key];
  if (action) {
    event.preventDefault();
    action();
  }
}

startPage();
byId("guide").open = read() === 0;
for (const button of buttons) button.addEventListener("click", () => keep(button.dataset.label));
byId("unsure").addEventListener("change", keepUnsure);
byId("back").addEventListener("click", () => go(at - 1));
byId("next").addEventListener("click", () => go(at + 1));
byId("save").addEventListener("click", save);
document.addEventListener("keydown", onKey);
at = nextLeft(0);
show();
