// SPDX-License-Identifier: BSD-3-Clause
// Draws the support matrix and the list of cases from the data that the page carries.
"use strict";
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byLetter = new Map(data.statuses.map((status, rank) => [status.letter, { ...status, rank }]));
  const PAGE = 200;

  function element(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  function letter(sign, title) {
    const status = byLetter.get(sign);
    return element("span", { class: "letter " + status.tone, title }, sign);
  }

  function worst(signs) {
    let found = null;
    for (const sign of signs) {
      if (sign === " " || (sign === "-" && found)) continue;
      if (!found || found === "-" || byLetter.get(sign).rank > byLetter.get(found).rank) found = sign;
    }
    return found;
  }

  function caseName(kind, subject, property, dtype) {
    return kind + ":" + subject + "/" + property + (dtype ? "/" + dtype : "");
  }

  function matcher(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    return (name) => words.every((word) => name.includes(word));
  }

  // --- the matrix

  const kinds = document.getElementById("matrix-kind");
  const columns = document.getElementById("matrix-columns");
  const rows = document.getElementById("matrix-filter");
  const onlyBad = document.getElementById("matrix-bad");
  const table = document.getElementById("matrix");
  const matrixCount = document.getElementById("matrix-count");
  data.grids.forEach((grid, number) => kinds.append(element("option", { value: number }, grid.kind)));

  function offerColumns() {
    const grid = data.grids[kinds.value];
    columns.replaceChildren(element("option", { value: "all" }, "all properties, worst of the dtypes"));
    grid.properties.forEach((name, number) =>
      columns.append(element("option", { value: number }, name + ", dtype by dtype")));
  }

  function tooltip(grid, subject, number, text) {
    const parts = new Map();
    [...text].forEach((sign, at) => {
      if (sign === " ") return;
      const name = byLetter.get(sign).name;
      parts.set(name, (parts.get(name) || []).concat(grid.short[at]));
    });
    const told = [...parts].map(([name, dtypes]) => name + ": " + dtypes.join(" "));
    return subject + " " + grid.properties[number] + "\n" + told.join("\n");
  }

  function matrixCells(grid, subject, cells) {
    if (columns.value === "all") {
      return grid.properties.map((_, number) => {
        const text = cells[number];
        const cell = element("td");
        if (text !== undefined) {
          const passed = [...text].filter((sign) => sign === "P" || sign === "H").length;
          const ran = [...text].filter((sign) => sign !== " " && sign !== "-").length;
          const found = worst(text);
          cell.append(letter(found, tooltip(grid, subject, number, text)));
          if (ran > 1 && passed < ran) cell.append(" " + passed + "/" + ran);
        }
        return cell;
      });
    }
    const text = cells[columns.value] || "";
    return grid.dtypes.map((dtype, at) => {
      const cell = element("td");
      const sign = text[at];
      if (sign && sign !== " ") {
        const name = caseName(grid.kind, subject, grid.properties[columns.value], dtype);
        const message = data.messages[data.told[name]] || "";
        cell.append(letter(sign, name + ": " + byLetter.get(sign).name + "\n" + message));
      }
      return cell;
    });
  }

  function drawMatrix() {
    const grid = data.grids[kinds.value];
    const fits = matcher(rows.value);
    const body = element("tbody");
    let shown = 0;
    for (const [subject, cells] of grid.rows) {
      if (!fits(subject.toLowerCase())) continue;
      const looked = columns.value === "all" ? Object.values(cells).join("") : cells[columns.value] || "";
      if (columns.value !== "all" && !looked) continue;
      if (onlyBad.checked && ![...looked].some((sign) => sign !== " " && byLetter.get(sign).tone === "bad"))
        continue;
      body.append(element("tr", {}, element("td", { class: "mono" }, subject), ...matrixCells(grid, subject, cells)));
      shown += 1;
    }
    const titles = columns.value === "all" ? grid.properties : grid.short;
    const header = element("tr", {}, element("th", {}, grid.kind), ...titles.map((title) => element("th", {}, title)));
    table.replaceChildren(element("thead", {}, header), body);
    matrixCount.textContent = shown + " of " + grid.rows.length;
  }

  // --- the list of cases

  const filter = document.getElementById("cases-filter");
  const statusChoice = document.getElementById("cases-status");
  const list = document.getElementById("cases");
  const casesCount = document.getElementById("cases-count");
  const more = document.getElementById("cases-more");
  let everything = null;
  let limit = PAGE;
  data.statuses.forEach((status) => statusChoice.append(element("option", { value: status.letter }, status.name)));

  function allCases() {
    if (everything) return everything;
    everything = [];
    for (const grid of data.grids)
      for (const [subject, cells] of grid.rows)
        for (const [number, text] of Object.entries(cells))
          [...text].forEach((sign, at) => {
            if (sign === " ") return;
            const name = caseName(grid.kind, subject, grid.properties[number], grid.dtypes[at]);
            const message = data.messages[data.told[name]] || "";
            everything.push({ name, sign, message, text: (name + " " + message).toLowerCase() });
          });
    everything.sort((one, other) => (one.name < other.name ? -1 : 1));
    return everything;
  }

  function drawCases() {
    const fits = matcher(filter.value);
    const sign = statusChoice.value;
    const chosen = allCases().filter((one) => (!sign || one.sign === sign) && fits(one.text));
    const body = chosen.slice(0, limit).map((one) =>
      element("tr", {},
        element("td", {}, letter(one.sign, byLetter.get(one.sign).name)),
        element("td", { class: "mono" }, one.name),
        element("td", {}, one.message)));
    list.replaceChildren(...body);
    casesCount.textContent = Math.min(limit, chosen.length) + " of " + chosen.length;
    more.hidden = chosen.length <= limit;
  }

  function whenOpened(id, draw) {
    const section = document.getElementById(id);
    let drawn = false;
    const open = () => {
      if (section.open && !drawn) {
        drawn = true;
        draw();
      }
    };
    section.addEventListener("toggle", open);
    open();
  }

  if (data.grids.length) {
    offerColumns();
    kinds.addEventListener("change", () => { offerColumns(); drawMatrix(); });
    for (const control of [columns, onlyBad]) control.addEventListener("change", drawMatrix);
    rows.addEventListener("input", drawMatrix);
    filter.addEventListener("input", () => { limit = PAGE; drawCases(); });
    statusChoice.addEventListener("change", () => { limit = PAGE; drawCases(); });
    more.addEventListener("click", () => { limit += 5 * PAGE; drawCases(); });
    whenOpened("matrix-section", drawMatrix);
    whenOpened("cases-section", drawCases);
  }
})();
