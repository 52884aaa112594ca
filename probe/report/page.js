// What report.html and the label page share: messages with all characters made visible.
// Everything that a model wrote is shown through text nodes only: no markup is ever made from data.
"use strict";

const byId = id => document.getElementById(id);
const LONG = 1200; // characters of a message that are shown at once

function element(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children.filter(child => child !== null && child !== undefined));
  return made;
}

// Control, bidirectional and other invisible characters would hide or reorder text. Joiners within emoji may stay.
const INVISIBLE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]|[\ud800-\udfff]/gu;

function shownAs(character) {
  return `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
}

function visibleText(text) {
  return text.replace(INVISIBLE, shownAs);
}

/** Return text nodes, with a marked sign for each character that cannot be seen. */
function visible(text) {
  const parts = document.createDocumentFragment();
  let end = 0;
  const lines = text.replace(/\r\n/g, "\n");
  for (const hit of lines.matchAll(INVISIBLE)) {
    parts.append(lines.slice(end, hit.index), element("span", "sign", shownAs(hit[0])));
    end = hit.index + hit[0].length;
  }
  parts.append(lines.slice(end));
  return parts;
}

/** Return a message of which `most` characters are shown at once. */
function turn(role, who, text, className = "", most = LONG) {
  const body = element("div", "text", text ? visible(text.slice(0, most).replace(/[\ud800-\udbff]$/, "")) : element("em", "", "empty"));
  body.dir = "auto";
  const made = element("div", `turn ${role === "user" ? role : ""} ${className}`, element("span", "who", who), body);
  if (text && text.length > most) {
    const more = element("button", "", `Show all ${text.length.toLocaleString("en")} characters`);
    more.type = "button";
    more.addEventListener("click", () => { body.replaceChildren(visible(text)); more.remove(); });
    made.append(more);
  }
  return made;
}

function chip(text, className = "") {
  return element("span", `chip ${className}`, visibleText(text));
}

function labelClass(label) {
  return /^\w+$/.test(label) ? `label-${label}` : "label-other";
}

