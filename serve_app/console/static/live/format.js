// Figures as people read them.

const NOTHING = "–";

function digits(value) {
  return value.toLocaleString("en-US", { maximumSignificantDigits: 3 });
}

export function number(value) {
  if (value === null || value === undefined) return NOTHING;
  return value >= 10000 ? `${digits(value / 1000)} k` : digits(value);
}

/** 0.0123 -> "12.3 ms". */
export function seconds(value) {
  if (value === null || value === undefined) return NOTHING;
  return value < 1 ? `${digits(value * 1000)} ms` : `${digits(value)} s`;
}

/** 0.123 -> "12.3 %". */
export function share(value) {
  return value === null || value === undefined ? NOTHING : `${digits(value * 100)} %`;
}

/** Unix seconds as the clock of this machine shows them. */
export function clock(unixSeconds) {
  return new Date(unixSeconds * 1000).toLocaleTimeString([], { hour12: false });
}
