// Turns to label, one by one; page.js stands before it. Answers stay in the browser until they are saved.

const DATA = JSON.parse(byId("data").textContent);
const KEPT = `labels ${DATA.store}`;
const buttons = [...document.querySelectorAll("#answer [data-label]")];
let answers = {}; // index of a turn -> [label, sure]
let at = 0;

try {
  answers = JSON.parse(localStorage.getItem(KEPT) || "{}");
} catch (error) {
  if (!(error instanceof DOMException)) throw error; // a file opened where storage is switched off
}

function store() {
  try {
    localStorage.setItem(KEPT, JSON.stringify(answers));
  } catch (error) {
    if (!(error instanceof DOMException)) throw error;
  }
}

/** Return the next turn without a label, around the end; the current one if all turns have a label. */
function nextUnlabelled(start) {
  const order = DATA.turns.map((_, index) => (start + index) % DATA.turns.length);
  return order.find(index => !answers[index]) ?? at;
}

function show() {
  const [drawn] = DATA.turns[at] || [];
  const all = DATA.turns.length;
  const done = Object.keys(answers).length;
  byId("count").textContent = all ? `Turn ${at + 1} of ${all}; ${done} labelled${done === all ? ", all of them: save the file" : ""}` : "Nothing is left to label";
  byId("turn").replaceChildren();
  if (drawn) {
    const who = `written next, in the user's place${drawn.cut ? " (cut at the token limit: a missing end says nothing)" : ""}`;
    byId("turn").append(...drawn.messages.map(message => turn(message.role, visibleText(message.role), message.content, "", Infinity)), turn("user", who, drawn.user_turn, "next", Infinity));
  }
  const [label, sure] = answers[at] || [null, true];
  for (const button of buttons) {
    button.setAttribute("aria-pressed", String(button.dataset.label === label));
    button.disabled = !drawn;
  }
  byId("unsure").checked = !sure;
  byId("back").disabled = at === 0;
  byId("next").disabled = at >= all - 1;
  byId("save").disabled = done === 0;
}

function go(index) {
  at = Math.max(0, Math.min(index, DATA.turns.length - 1));
  show();
  byId("turn").focus({ preventScroll: true });
  byId("turn").scrollIntoView({ block: "nearest" });
}

function keep(label) {
  if (!DATA.turns.length) return;
  answers[at] = [label, !byId("unsure").checked];
  store();
  if (Object.keys(answers).length === 1) byId("guide").open = false; // room for the turns; ? opens it again
  go(nextUnlabelled(at + 1));
}

/** Keep a change of "unsure" for a turn that has a label already. */
function keepUnsure() {
  if (!answers[at]) return;
  answers[at][1] = !byId("unsure").checked;
  store();
}

function save() {
  const rows = Object.entries(answers).flatMap(([index, [label, sure]]) => DATA.turns[index].map(drawn => ({ ...drawn, label, sure })));
  const link = element("a", "");
  link.href = URL.createObjectURL(new Blob(rows.map(row => `${JSON.stringify(row)}\n`), { type: "application/jsonl" }));
  link.download = "labels.jsonl";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

document.documentElement.classList.add("scripted");
byId("guide").open = Object.keys(answers).length === 0;
for (const button of buttons) button.addEventListener("click", () => keep(button.dataset.label));
byId("unsure").addEventListener("change", keepUnsure);
byId("back").addEventListener("click", () => go(at - 1));
byId("next").addEventListener("click", () => go(at + 1));
byId("save").addEventListener("click", save);
const ACTIONS = {
  ...Object.fromEntries(Object.entries(DATA.keys).map(([key, label]) => [key, () => keep(label)])),
  u: () => { byId("unsure").checked = !byId("unsure").checked; keepUnsure(); },
  b: () => go(at - 1),
  n: () => go(at + 1),
  "?": () => { byId("guide").open = !byId("guide").open; },
};
document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || !Object.hasOwn(ACTIONS, event.key)) return;
  event.preventDefault();
  ACTIONS[event.key]();
});
at = nextUnlabelled(0);
show();
