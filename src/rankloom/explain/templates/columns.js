// Columns of boxes and rows of cells.

/** How many columns: as many as fit, or a few less where then all rows are full. */
function evenColumns(count, room, width, gap) {
  const most = Math.max(1, Math.min(count, Math.floor((room + gap) / (Math.max(1, width) + gap))));
  for (let columns = most; columns > most / 2; columns -= 1) if (count % columns === 0) return columns;
  return most;
}

/** The item of the next row in a direction that is nearest in x. */
function nearestInRow(items, at, direction) {
  const from = items[at].getBoundingClientRect();
  const middle = from.left + from.width / 2;
  let best = null;
  let row = null;
  let distance = Infinity;
  for (let i = at + direction; i >= 0 && i < items.length; i += direction) {
    const to = items[i].getBoundingClientRect();
    const gap = direction * (to.top - from.top);
    if (gap < from.height / 2) continue;
    if (row === null) row = to.top;
    if (Math.abs(to.top - row) > to.height / 2) {
      if (direction * (to.top - row) > to.height) break;
      continue;
    }
    const off = Math.abs(to.left + to.width / 2 - middle);
    if (off < distance) [best, distance] = [items[i], off];
  }
  return best;
}
