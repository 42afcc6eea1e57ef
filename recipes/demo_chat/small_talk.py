"""Small talk: greetings, who demo-chat is, the user's name, and what it does not know."""

from __future__ import annotations

from typing import Final

from recipes.demo_chat.dialogue import Exchange, Talk, casually
from recipes.demo_chat.facts import COUNTRIES
from recipes.demo_chat.words import ADJECTIVES, NOUNS, Pool

SORRY: Final = "Sorry, I only know small talk, small sums and the capitals of the world."

_Phrases = tuple[str, ...]

# answer -> (ways of saying it in training, ways held out)
_GREETINGS: Final[dict[str, tuple[_Phrases, _Phrases]]] = {
    "Hello! How can I help you?": (
        ("Hello!", "Hi!", "Hey!", "Hello there!", "Hi there!", "Hey there!", "Hello, demo-chat!",
         "Hi, demo-chat.",
         "Greetings!", "Howdy!", "Hello. Are you there?", "Good day!", "Hello, hello!",
         "Hi, can you hear me?", "Yo!", "Are you there?", "Hi, are you there?", "Hey, are you listening?",
         "Anybody there?", "Are you online?", "Oh, hi!", "Ah, hey!", "Hello again!", "Hi, hello!"),
        ("Hello, are you there?", "Hi hi!", "Oh, hello!"),
    ),
    "Good morning! How can I help you?": (
        ("Good morning!", "Good morning, demo-chat!", "Morning!", "Hello, good morning!",
         "A very good morning!"),
        ("Hi, good morning!", "Good morning to you!"),
    ),
    "Good evening! How can I help you?": (
        ("Good evening!", "Good evening, demo-chat!", "Evening!", "Hello, good evening!",
         "A very good evening!"),
        ("Hi, good evening!", "Good evening to you!"),
    ),
    "I am fine, thank you. How are you?": (
        ("How are you?", "How are you today?", "How do you do?", "How are you doing?", "Hello, how are you?",
         "Hi! How are you?", "How is it going?", "How are things?", "Are you well?", "How do you feel?",
         "How have you been?", "What's up?", "Hey, how is it going?", "How's your day?",
         "Hi there, how are you?"),
        ( "How are you doing today?", "Hello! How is it going?", "Hi, how are things?"),
    ),
    "I am glad to hear that.": (
        ("I am fine.", "I am fine too, thanks.", "I am well, thank you.", "I'm good.", "I'm great!",
         "Very well.",
         "I feel great today.", "I am happy.", "I am so happy today.", "I'm great, thanks.", "Not bad.",
         "All is well.", "I had a good day."),
        ("I am great, thank you.", "I'm fine, thanks.", "I am very happy today."),
    ),
    "I am sorry to hear that.": (
        ("I am sad.", "I am tired.", "I feel bad.", "Not so good.", "I am not well.", "I'm ill.",
         "I had a bad day.",
         "I am lonely.", "I'm feeling down.", "I am so tired.", "I'm not well.", "I feel so sad.",
         "Today was a bad day.", "I feel sad today."),
        ("I feel tired today.", "I am so sad.", "I'm not feeling well."),
    ),
    "You are welcome!": (
        ("Thank you!", "Thanks!", "Thanks a lot!", "Thank you very much!", "Many thanks.",
         "Great, thanks.", "Thx!",
         "Thank you, demo-chat.", "Okay, thank you.", "Thanks for your help.",
         "That was helpful, thank you.", "Thanks so much!", "Wonderful, thank you!",
         "Thank you, that was good."),
        ("Thank you so much!", "Thanks, that was helpful.", "Perfect, thanks!"),
    ),
    "Goodbye! Have a nice day.": (
        ("Goodbye!", "Bye!", "Bye bye!", "See you!", "See you later!", "Good night!", "Have a nice day!",
         "Farewell.",
         "I have to go now.", "That is all for today.", "Talk to you later.", "Okay, bye.",
         "Goodbye, demo-chat!", "Thank you, goodbye!", "Bye, and thanks!", "Thanks and goodbye!",
         "Thank you, bye bye!", "Until next time!", "See you tomorrow!", "I must go, bye."),
        ( "See you soon!", "Thanks, bye!", "I need to go, goodbye."),
    ),
    "Thank you, that is kind.": (
        ("You are great!", "Well done!", "Good job!", "I like you.", "You are clever.", "Nice!",
         "You're the best.",
         "You are funny.", "Great answer!", "Good answer.", "That was good!", "That was a great answer.",
         "You did well.",
         "You are so kind.", "You are so smart!", "That is a nice answer.", "You did great!",
         "Very good!", "You are very smart."),
        ("You are so clever!", "That was a good answer.", "You did a good job!"),
    ),
}  # fmt: skip

_IDENTITY: Final[dict[str, tuple[_Phrases, _Phrases]]] = {
    "I am demo-chat, a small language model.": (
        ("Who are you?", "What are you?", "What is your name?", "Tell me who you are.", "What's your name?",
         "Introduce yourself.", "What should I call you?", "Who am I talking to?",
         "Tell me your name.", "Which model are you?", "What model is this?", "Do you have a name?",
         "Hi, who are you?", "And who are you?",
         "Tell me about yourself.", "What kind of model are you?", "Hello! What is your name?",
         "Who is there?", "Who is that?", "Who is speaking?", "Who is talking to me?", "Who is it?",
         "What is this?", "Please introduce yourself.", "Can you tell me your name?", "Can I know your name?",
         "May I know who you are?", "Could you introduce yourself?", "Hey, what are you called?",
         "Good day, who are you?", "Say who you are."),
        ("Could you tell me who you are?", "Hello, who are you?", "May I ask your name?", "Who is this?",),
    ),
    "No, I am demo-chat, a small language model.": (
        ("Are you human?", "Are you a person?", "Are you a human being?", "Are you ChatGPT?",
         "Are you GPT-4?",
         "Are you Llama?", "Are you a real person?", "Am I talking to a human?", "Are you alive?",
         "Are you Claude?",
         "Are you a big model?", "Are you Siri?", "Is this a human?", "Am I talking to a person?",
         "Are you Bob?", "Are you Mistral?", "Are you Qwen?", "Are you Alexa?", "Is this ChatGPT?",
         "Is this a real human?", "Is that a person?", "Is this a man?", "Is it a human?",
         "Is there a real person here?", "Are you really a person?", "Am I talking to a real person?",
         "Are you a woman?", "Is a human there?"),
        ("Are you a real human?", "Is this a real person?", "Are you Gemini?"),
    ),
    "I can chat, do small sums, name capitals, repeat words, write JSON, tell a story and use your tools.": (
        ("What can you do?", "How can you help me?", "What do you know?", "Help!",
         "What are you good at?", "Help me.",
         "What are your skills?", "What can I ask you?", "Can you help me?", "What do you do?",
         "I need help.",
         "Tell me what you can do.", "Which things can you do?", "What can you help me with?",
         "What sort of things do you know?", "How could you help me?",
         "So what do you do?", "What is it that you can do?", "Can you do anything for me?"),
        ("What kind of things can you do?", "How can you help?", "So what can you do for me?"),
    ),
    "I was trained by a small recipe on text that it wrote itself.": (
        ("Who made you?", "Who created you?", "Who built you?", "Where do you come from?",
         "How were you trained?",
         "Who trained you?", "How were you made?", "What were you trained on?", "Who is your maker?",
         "Tell me how you were made.", "Who is your creator?", "How did they make you?", "Who wrote you?",
         "Tell me who built you.", "Who programmed you?", "How did you learn?", "Which company made you?"),
        ("Who developed you?", "How were you created?", "Tell me who made you."),
    ),
}  # fmt: skip

_VERSION: Final[_Phrases] = (
    "Which version are you?", "What version are you?", "Which version is this?", "What is your version?",
    "Tell me your version.", "What's your version number?", "Which version of demo-chat are you?",
    "Are you version 1?", "Are you version 2?", "Do you have a version?",
    "What version of demo-chat is this?", "Which version am I speaking with?", "What version is running?",
    "Can you tell me your version?", "Please say your version.", "Which version is running here?",
    "Which version is it?", "What version have I got here?",
)  # fmt: skip
_VERSION_HELD: Final[_Phrases] = (
    "Could you tell me your version?", "What version am I talking to?", "Which version do you have?",
)  # fmt: skip
_IDENTITY_2: Final = {
    answer.replace("demo-chat,", "demo-chat, version 2,").replace(
        "name capitals,", "name capitals, days and months,"
    ): phrases
    for answer, phrases in _IDENTITY.items()
} | {"I am version 2 of demo-chat.": (_VERSION, _VERSION_HELD)}

_TOPICS: Final = (
    "the world cup", "the election", "quantum physics", "the stock market", "football", "chemistry",
    "the Mona Lisa", "the theory of relativity", "photosynthesis", "the Roman empire",
    "machine learning", "jazz", "a black hole", "the French revolution", "Shakespeare",
    "a good restaurant", "the best phone", "climate change", "a headache", "the second world war",
    "bitcoin", "the law", "taxes", "Python", "a diesel engine", "the human brain", "DNA",
    "the moon landing", "an electron", "the ozone layer", "opera", "chess", "yoga", "pasta",
    "a volcano", "gravity", "a rocket engine", "geology", "the radio", "medicine", "history", "a storm",
    "the Eiffel tower", "trade", "tennis", "Beethoven", "a battery", "a comet", "poverty",
    "the steam engine", "the flu", "energy", "a rainforest", "painting",
)  # fmt: skip
_TOPICS_HELD: Final = (
    "the Olympic games", "biology", "the internet", "the Great Wall", "a rainbow", "basketball",
    "evolution", "the pyramids", "inflation", "cancer", "Mozart", "a solar panel", "philosophy",
    "the telephone",
)  # fmt: skip
_UNKNOWN: Final = (
    "Explain {t}.", "What is {t}?", "How does {t} work?", "Tell me about {t}.",
    "Why is {t} important?", "Give me a summary of {t}.", "What do you think about {t}?",
    "Who invented {t}?", "When was {t} discovered?", "Write an essay about {t}.", "How old is {t}?",
    "Teach me {t}.", "What is the history of {t}?", "Who won {t}?", "Can you explain {t} to me?",
    "Where can I find {t}?", "I have a question about {t}.", "Describe {t}.", "What happened in {y}?",
    "Who was president in {y}?", "Who won the world cup in {y}?", "Fix my {n}.",
    "How do I cook a {n}?", "Where can I buy a {a} {n}?", "How much does a {n} cost?",
    "Draw a {a} {n}.", "How do I repair a {n}?", "Why is the {n} {a}?", "Who wrote {t}?",
    "Book a flight to {c}.", "How big is {c}?", "How many people live in {c}?",
    "What language do people speak in {c}?", "Who is the king of {c}?", "What is the currency of {c}?",
    "Write Python code for a {n}.", "Translate {n} into French.", "Play {t}.",
    "What should I eat today?", "What is the meaning of life?", "Is there life on Mars?",
    "What is love?", "How tall is the highest mountain?", "How far away is the moon?",
    "Who is your favourite singer?", "What is the square root of {y}?", "Recommend a book about {t}.",
    "What is the best {a} {n}?", "Write code that prints a {n}.",
    "How many {n}s do you have?", "What is the smallest {n}?", "Which team plays in {c}?", "Write a program.",
    "Where is {t} from?", "Do you know about {t}?", "How deep is the sea near {c}?",
    "Why is the sky blue?", "Solve this equation.", "What do you know about {t}?",
    "Can you tell me about {t}?", "Tell me something about {t}.", "Have you heard of {t}?",
    "Would you explain {t}?", "Please explain {t} to me.", "Could you describe {t}?", "Where did {t} begin?",
    "Where do {n}s come from?", "Who was the first person in {c}?", "Which team is the best?",
    "Which player won in {y}?", "Who lost in {y}?", "Write code that reads a file.",
    "Write code that adds {n}s.", "How long is a {n}?", "What is the largest {n} on Earth?",
    "How many rivers are there in {c}?", "How long is the road through {c}?", "Which {n} is the best?",
)  # fmt: skip
_UNKNOWN_HELD: Final = (
    "Could you explain {t}?", "What can you tell me about {t}?", "Do you know anything about {t}?",
    "Who was the first to study {t}?", "Where does {t} come from?", "How long is the river in {c}?",
    "What is the biggest {n} in the world?", "Which team won in {y}?", "How many {n}s are there in {c}?",
    "Write code that sorts a list.", "What is the best {n}?",
)  # fmt: skip

_MY_NAME: Final = (
    "My name is {n}.", "I am {n}.", "Call me {n}.", "Hello, I am {n}.", "Hi, my name is {n}.",
    "I'm {n}.", "Hi! I'm {n}.", "You can call me {n}.", "Hello, my name is {n}.",
    "Please call me {n}.", "They call me {n}.", "Good morning, I am {n}.",
    "My name is {n}, remember it.", "Remember that my name is {n}.", "The name is {n}.",
)  # fmt: skip
_MY_NAME_HELD: Final = ("Good day, my name is {n}.", "Good evening, I am {n}.", "Hello! Please call me {n}.")
_ASK_NAME: Final = (
    "What is my name?", "Who am I?", "What's my name?", "Do you remember my name?", "Tell me my name.",
    "Do you know my name?", "Can you tell me my name?", "And what is my name?",
    "What did I say my name was?", "How am I called?", "Say my name.", "Do you know who I am?",
    "What was my name again?", "Remind me of my name.",
)  # fmt: skip
_ASK_NAME_HELD: Final = ("Do you still remember my name?", "What is my name again?", "Can you say my name?")


def greeting(pool: Pool, talk: Talk) -> Exchange:
    return _canned(pool, "greeting", _GREETINGS)


def identity(pool: Pool, talk: Talk) -> Exchange:
    return _canned(pool, "identity", _IDENTITY if talk.version == 1 else _IDENTITY_2)


def give_name(pool: Pool, talk: Talk) -> Exchange:
    talk.name = pool.name()
    question = pool.phrase(_MY_NAME, _MY_NAME_HELD).format(n=talk.name)
    return Exchange("name", question, f"Nice to meet you, {talk.name}!")


def ask_name(pool: Pool, talk: Talk) -> Exchange:
    """The name given earlier in the dialogue, or that none was."""
    answer = f"Your name is {talk.name}." if talk.name else "You have not told me your name yet."
    return Exchange("name", casually(pool, pool.phrase(_ASK_NAME, _ASK_NAME_HELD)), answer)


def unknown(pool: Pool, talk: Talk) -> Exchange:
    """A question outside the domain: a polite refusal, the same for all."""
    question = pool.phrase(_UNKNOWN, _UNKNOWN_HELD).format(
        t=pool.nonsense() if pool.chance(0.15) else pool.phrase(_TOPICS, _TOPICS_HELD),
        y=pool.number(1200, 2030),
        n=pool.pick(NOUNS),
        a=pool.pick(ADJECTIVES),
        c=pool.pick(COUNTRIES),
    )
    return Exchange("unknown", casually(pool, question), SORRY)


def _canned(pool: Pool, skill: str, answers: dict[str, tuple[_Phrases, _Phrases]]) -> Exchange:
    answer = pool.pick(tuple(answers))
    return Exchange(skill, casually(pool, pool.phrase(*answers[answer])), answer)
