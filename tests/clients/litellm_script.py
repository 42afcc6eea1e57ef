"""What a user of litellm does, run by an interpreter that has it: `python litellm_script.py BASE_URL MODEL`.

Prints one JSON object. Knows nothing of this project.
"""

import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # nothing is fetched

import litellm  # after its environment

base_url, name = sys.argv[1:]
server = {"model": f"openai/{name}", "api_base": base_url, "api_key": "unused", "num_retries": 0}
question = [{"role": "user", "content": "What is the capital of France?"}]
weather = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}

whole = litellm.completion(messages=question, temperature=0, **server)
stream = list(litellm.completion(messages=question, temperature=0, stream=True, **server))
ask = [{"role": "user", "content": "What is the weather in Paris?"}]
call = litellm.completion(messages=ask, tools=[weather], temperature=0, **server).choices[0].message
told = [*ask, call.model_dump(), {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "Sunny."}]
final = litellm.completion(messages=told, tools=[weather], temperature=0, **server)
try:
    litellm.completion(messages=question, temperature=9, **server)
    refused = "nothing"
except litellm.BadRequestError as error:
    refused = str(error)

# A prompt that is too long for one deployment goes to another one, which here cuts it.
cuts = {**server, "extra_body": {"truncate_prompt_tokens": -1}, "max_tokens": 8}
router = litellm.Router(
    model_list=[
        {"model_name": "small", "litellm_params": server},
        {"model_name": "large", "litellm_params": cuts},
    ],
    context_window_fallbacks=[{"small": ["large"]}],
    num_retries=0,
)
long = [{"role": "user", "content": "What is the capital of France? " * 100}]
try:
    litellm.completion(messages=long, **server)
    overflow = "nothing"
except litellm.ContextWindowExceededError as error:
    overflow = str(error)
fallen_back = router.completion(model="small", messages=long)

print(
    json.dumps(
        {
            "whole": whole.choices[0].message.content,
            "usage": whole.usage.total_tokens,
            "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in stream),
            "called": [[c.function.name, json.loads(c.function.arguments)] for c in call.tool_calls],
            "final": final.choices[0].message.content,
            "refused": refused,
            "overflow": overflow,
            "fallen_back": fallen_back.usage.prompt_tokens,
        }
    )
)
