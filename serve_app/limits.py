"""Every bound on client input, each with its reason.

They are checked before anything is allocated for the request. A dialect may allow less,
never more. Bounds that depend on the model (context window, vocabulary) are
checked by the replica.
"""

from typing import Final

# --- the body ------------------------------------------------------------------------
MAX_BODY_BYTES: Final = 8 * 2**20  # a 1 M token prompt as ids is about 7 MB of JSON
BODY_READ_TIMEOUT_S: Final = 30.0  # between two pieces of a body; stops a slow sender
MAX_BODY_READ_S: Final = 120.0  # for a whole body
MAX_BODIES_BYTES: Final = 64 * 2**20  # of all open requests together; parsed, 10 times that
SMALL_BODY_BYTES: Final = 64 * 2**10  # never refused because of other bodies; their number is bounded
MAX_TENSOR_BODY_BYTES: Final = 32 * 2**20  # with binary tensors, such as an adapter's weights; half of all
MAX_JSON_NUMBERS: Final = 2**22  # in one answer's tensors: 46 MB of JSON; binary data may have more
MAX_TENSOR_ID_CHARS: Final = 1_024  # of a tensor request's own id, which is echoed
MAX_STREAM_REQUESTS: Final = 256  # at once on one gRPC stream; the next waits in the client's socket
MAX_RPC_METADATA_BYTES: Final = 16 * 2**10  # of one call; servers' usual bound for the headers of HTTP
MAX_JSON_DEPTH: Final = 64  # parsers recurse; no honest body nests deeper
MAX_JSON_CONTAINERS: Final = 100_000  # lists and objects: an empty one of 3 bytes becomes a hundred
MAX_ERROR_BYTES: Final = 2_000  # an error never grows with the input that caused it
MAX_HEADER_ID_CHARS: Final = 256  # of a client's X-Request-Id, which is echoed

# --- the management API --------------------------------------------------------------
MAX_MANAGEMENT_BODY_BYTES: Final = 2**20  # ten entities with all their fields take a few kB
MAX_QUERY_PARAMETERS: Final = 64  # of a URL; each becomes two strings
MAX_ROLLOUT_STEPS: Final = 20  # of 5 % of the traffic each; a rollout's error level is divided among them
MIN_STEP_S: Final = 1.0  # usage reaches the control plane about once a second
MAX_STEP_S: Final = 7 * 86_400.0  # of a rollout: a week has every weekday
MAX_GUARDED_S: Final = 86_400.0  # latency that a guard may allow: longer than any request lives
MAX_GUARD_REQUESTS: Final = 1_000_000  # that a step may wait for
MAX_FEEDBACK: Final = 1e9  # the sum of its squares still fits in a float
MAX_TAGS: Final = 64  # of one endpoint
MAX_TAG_CHARS: Final = 256  # of a tag's key, or of its value
MAX_DESCRIPTION_CHARS: Final = 4_096  # of an endpoint; listed with the endpoint
MAX_STORED_CHARS: Final = 4_096  # of a text that is kept without an effect
MAX_STORED_TEXTS: Final = 128  # in a list or a map that is kept without an effect
MAX_GRANTS: Final = 1_000  # in one body: users, groups and service principals of one endpoint

# --- the prompt ----------------------------------------------------------------------
MAX_PROMPT_CHARS: Final = 4 * 2**20  # before tokenising, which is linear but not free
MAX_TOKENISING_CHARS: Final = 4 * MAX_PROMPT_CHARS  # of texts waiting for a thread: at worst 20 s of work
MAX_QUESTION_CHARS: Final = 2**20  # of a text to be tokenised only: 2 s in a thread, up to 270 MB
MAX_QUESTION_TOKENS: Final = 2**18  # in that text or its ids: 2 MB of JSON, the largest usual window
MAX_CONTROL_TOKENS_IN_CHAT: Final = 10_000  # in the text of users; each is spelled out as plain text
MAX_PROMPTS: Final = 128  # prompts in one completions body
MAX_MESSAGES: Final = 2_048  # messages of one chat
MAX_CONTENT_PARTS: Final = 256  # parts of one message
MAX_MODEL_NAME_CHARS: Final = 256  # a longer name is in no catalogue
MAX_DOCUMENTS: Final = 1_024  # of one chat; their text counts as the prompt's
MAX_CACHE_SALT_CHARS: Final = 256  # `cache_salt`, which becomes part of a key
MAX_TEMPLATE_VARIABLES: Final = 64  # `chat_template_kwargs`; templates read a handful
MAX_TEMPLATE_VARIABLES_CHARS: Final = 16 * 2**10  # of all of them, as JSON: they may end up in the prompt
MAX_METADATA: Final = 16  # OpenAI's own bound: names in the `metadata` of a response
MAX_METADATA_KEY_CHARS: Final = 64  # as MAX_METADATA
MAX_METADATA_VALUE_CHARS: Final = 512  # as MAX_METADATA
MAX_TOOLS: Final = 128  # OpenAI's own bound; templates write all of them into the prompt
MAX_AGENT_TOOLS: Final = 512  # the same for agents, which bring the tools of many servers
MAX_TOOL_SCHEMA_BYTES: Final = 64 * 2**10  # of one tool's parameters: they may become a grammar
MAX_USER_CHARS: Final = 512  # `user`, kept for logs and stickiness only
MAX_EMBED_INPUTS: Final = 2_048  # OpenAI's own bound: texts of one body
MAX_DIMENSIONS: Final = 65_536  # of a vector in a request; the model's own size is the real bound
MAX_EMBEDDED_NUMBERS: Final = 2**23  # in one answer: 2,048 vectors of 4,096; 32 MiB before writing

# --- sampling ------------------------------------------------------------------------
MAX_N: Final = 128  # OpenAI's own bound; n sequences hold n times the cache
MAX_BEST_OF: Final = 128  # as MAX_N: each candidate is a sequence
MAX_LOGPROBS: Final = 20  # OpenAI's own bound; each is a row of a top-k per token
MAX_TEMPERATURE: Final = 2.0  # OpenAI's own bound
MAX_PENALTY: Final = 2.0  # presence and frequency, both signs
MAX_REPETITION_PENALTY: Final = 100.0  # beyond it a float32 logit overflows in a long text
MAX_LOGIT_BIAS: Final = 1_024  # entries
MAX_ABS_LOGIT_BIAS: Final = 100.0  # OpenAI's own bound
MAX_BAD_WORDS: Final = 256  # each is compared with the tail of every sequence at every step
MAX_BAD_WORD_TOKENS: Final = 64  # the length of that comparison
MAX_STOP_STRINGS: Final = 1_024  # they are matched together, in one automaton
MAX_STOP_CHARS: Final = 1_024  # of one stop string: it is held back from the stream
MAX_STOP_TOKEN_IDS: Final = 1_024  # each is masked while min_tokens holds
MAX_STOP_SEQUENCES: Final = 256  # of tokens; each is compared with the tail of the output at every step
MAX_STOP_SEQUENCE_TOKENS: Final = 64  # the length of that comparison
MAX_DRAFT_TOKENS: Final = 1_024  # each is a row of logits, and a step has a limited number of rows
MAX_LOGITS_BYTES: Final = 64 * 2**20  # of one request: 524 rows of a vocabulary of 32,000 in float32
MAX_PROMPT_LOGPROBS: Final = 250_000  # of all choices of a request: what fits in a message to a gateway
MAX_BEAM_WIDTH: Final = 64  # each beam is a sequence, and all of them take their tokens in one step
MAX_BEAM_CANDIDATES: Final = 4_096  # continuations a search looks at in a step: width x (1 + end tokens)
MAX_LENGTH_PENALTY: Final = 10.0  # an exponent, both signs: beyond it a score overflows float32
MAX_DIVERSITY_PENALTY: Final = 100.0  # as MAX_ABS_LOGIT_BIAS: the penalty is a kind of logit bias
MAX_ALLOWED_TOKEN_IDS: Final = 1_024  # as MAX_LOGIT_BIAS
MAX_PRIORITY: Final = 4  # steps above and below the usual priority; MindIE has as many above
MAX_NO_REPEAT_NGRAM: Final = 64  # n: the index keeps 4 n bytes for each token of prompt and output
MAX_LOOP_TOKENS: Final = 1_024  # of a pattern that an output may not repeat: looked for at every token
MAX_LOOP_COUNT: Final = 1_024  # how often the pattern may occur
MAX_PROCESSORS: Final = 16  # logits processors of one request, each run at every step
MAX_PROCESSOR_ARGUMENT_CHARS: Final = 16 * 2**10  # of one of them, as JSON
MAX_TOKENS: Final = 2**31 - 1  # a plain integer bound; the context window is the real bound
MAX_SEED: Final = 2**64 - 1  # the width of the noise generator's key
MAX_SCHEMA_BYTES: Final = 256 * 2**10  # of a JSON Schema; a child process compiles it, within 2 s
MAX_REGEX_CHARS: Final = 16 * 2**10  # as MAX_SCHEMA_BYTES
MAX_GRAMMAR_CHARS: Final = 128 * 2**10  # of a Lark or GBNF grammar, or of all choices together
MAX_GRAMMAR_CHOICES: Final = 10_000  # strings, one of which is the answer
MAX_STRICT_PROPERTIES: Final = 5_000  # OpenAI's own bound under `strict`, as are the next two
MAX_STRICT_DEPTH: Final = 10  # objects and arrays inside each other
MAX_STRICT_ENUM: Final = 1_000  # values of one enum
MAX_TIMEOUT_S: Final = 3_600.0  # the longest deadline a client may ask for

# --- kept responses ------------------------------------------------------------------
MAX_KEPT_ID_CHARS: Final = 256  # of a response or item in a request; no id is longer
MAX_KEPT_IN_MEMORY_BYTES: Final = 256 * 2**20  # of all keys' responses in a gateway without a database
MAX_LISTED_ITEMS: Final = 100  # OpenAI's own bound: items of a response's input in one answer

# --- keys ----------------------------------------------------------------------------
MAX_KEYS: Final = 10_000  # in force at once: every gateway holds all of them, some 2 kB each
MAX_KEY_NAMES: Final = 100  # groups, or endpoints, of one key
MAX_PRINCIPAL_CHARS: Final = 256  # of the name of a user, a group or a service principal
MAX_COMMENT_CHARS: Final = 1_024  # of a key; listed with the key
MAX_KEY_LIFETIME_S: Final = 10 * 365 * 86_400.0  # for a longer life, make a key without an end
MAX_LOGGED_REQUESTS: Final = 200  # on one page of an inference table, each of some 500 bytes
MAX_KEY_GRACE_S: Final = 30 * 86_400  # how long a former secret lives; for more time, make two keys
MAX_ENDPOINT_GRANTS: Final = 1_000  # of one endpoint; a gateway looks through them at each request
