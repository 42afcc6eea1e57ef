/** A request's path and body, out of a protocol, a prompt and options. Knows no page and no network. */

import { put } from "./options.js";

/**
 * What the server tells of a protocol, as data attributes of the form of options.
 *
 * @typedef {{id: string, mode: "chat" | "text", dialect: string, path: string, streamPath: string, prompt: string,
 *   namesModel: boolean, streams: boolean, usage: boolean}} Protocol
 */

/**
 * @param {DOMStringMap} data
 * @returns {Protocol}
 */
export function protocolOf(data) {
  return {
    id: data.protocol,
    mode: data.mode,
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
 * @param {{endpoint: string, entity: string, prompt: any, members: [string, any][], stream: boolean}} asked
 *   `prompt` is a list of messages or a text
 */
export function requestFor(protocol, { endpoint, entity, prompt, members, stream }) {
  const body = protocol.namesModel ? { model: endpoint } : {};
  put(body, protocol.prompt, prompt);
  for (const [path, value] of members) put(body, path, value);
  if (protocol.streams) body.stream = stream;
  if (protocol.usage && stream) body.stream_options = { include_usage: true };
  const path = (stream ? protocol.streamPath : protocol.path).replace("{model}", () => inPath(endpoint));
  return { path, dialect: protocol.dialect, entity, body };
}

/** A name in a path. It may hold slashes, which stay. */
function inPath(name) {
  return name.split("/").map(encodeURIComponent).join("/");
}
