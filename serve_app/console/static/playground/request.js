/** A request's path and body, out of a protocol, a prompt and options. Knows no page and no network. */

import { put } from "./options.js";
import { SHAPES, written } from "./shapes.js";

/**
 * What the server tells of a protocol, as data attributes of the form of options.
 *
 * @typedef {{id: string, mode: "chat" | "text", shape: import("./shapes.js").Shape | "text", dialect: string,
 *   path: string, streamPath: string, prompt: string, namesModel: boolean, streams: boolean,
 *   usage: boolean}} Protocol
 * @typedef {{endpoint: string, entity: string, prompt: any, members: [string, any][],
 *   said: import("./tools.js").Said, stream: boolean}} Asked `prompt` is a list of messages or a text
 */

/**
 * @param {DOMStringMap} data
 * @returns {Protocol}
 */
export function protocolOf(data) {
  return {
    id: data.protocol,
    mode: data.mode,
    shape: data.shape,
    dialect: data.dialect,
    path: data.path,
    streamPath: data.streamPath,
    prompt: data.prompt,
    namesModel: data.namesModel !== undefined,
    streams: data.streams !== undefined,
    usage: data.usage !== undefined,
  };
}

/**
 * @param {Protocol} protocol
 * @param {Asked} asked
 */
export function requestFor(protocol, { endpoint, entity, prompt, members, said, stream }) {
  const body = protocol.namesModel ? { model: endpoint } : {};
  const shared = protocol.shape === "text" ? { [protocol.prompt]: prompt } : written(protocol.shape, prompt, said);
  for (const [path, value] of [...Object.entries(shared), ...members]) put(body, path, value);
  if (protocol.streams) body.stream = stream;
  if (protocol.usage && stream) body.stream_options = { include_usage: true };
  const path = (stream ? protocol.streamPath : protocol.path).replace("{model}", () => inPath(endpoint));
  return { path, dialect: protocol.dialect, entity, body };
}

/**
 * What differs between the shapes of chats, in each of them; nothing for a text.
 *
 * @param {Protocol} protocol
 * @param {Asked} asked
 * @returns {Record<string, Record<string, any>>}
 */
export function inEveryShape(protocol, { prompt, said }) {
  if (protocol.shape === "text") return {};
  return Object.fromEntries(SHAPES.map((shape) => [shape, written(shape, prompt, said)]));
}

/** A name in a path. It may hold slashes, which stay. */
function inPath(name) {
  return name.split("/").map(encodeURIComponent).join("/");
}
