"""Word lists of the demo corpus: names, places, things. Data only."""

from __future__ import annotations

from random import Random

NAMES = (
    "Anna", "Tom", "Maria", "Peter", "Lucy", "Ben", "Clara", "David", "Emma", "Frank", "Grace", "Henry", "Irene",
    "Jack", "Kate", "Leo", "Mona", "Nick", "Olga", "Paul", "Rosa", "Sam", "Tina", "Victor", "Wendy", "Alice", "Bob",
    "Carol", "Daniel", "Eva", "Felix", "Greta", "Hugo", "Ida", "Jonas", "Karen", "Lars", "Mira", "Nina", "Oscar",
    "Petra", "Quinn", "Robert", "Sarah", "Theo", "Ursula", "Vera", "Walter", "Yara", "Zoe", "Adam", "Bella",
    "Carlos", "Diana", "Edward", "Fiona", "George", "Hannah", "Ivan", "Julia", "Kevin", "Laura", "Martin", "Nora",
    "Oliver", "Paula", "Ryan", "Sophie", "Thomas", "Ella", "James", "Linda", "Marco", "Amir", "Chen", "Yuki",
    "Priya", "Omar", "Leila", "John", "Mary", "Alex", "Jane", "Mark", "Lisa", "Mike", "Susan",
)
PLACES = (
    "Paris", "London", "Berlin", "Rome", "Madrid", "Vienna", "Oslo", "Lisbon", "Dublin", "Prague", "Athens",
    "Cairo", "Tokyo", "Sydney", "Boston", "Chicago", "Denver", "Lima", "Quito", "Havana", "Delhi", "Mumbai",
    "Seoul", "Kyoto", "Geneva", "Zurich", "Munich", "Hamburg", "Milan", "Naples", "Venice", "Florence", "Porto",
    "Seville", "Lyon", "Nice", "Bergen", "Helsinki", "Riga", "Warsaw", "Krakow", "Budapest", "Sofia", "Toronto",
    "Montreal", "Austin", "Dallas", "Seattle", "Portland", "Oxford", "York", "Leeds", "Cardiff", "Bristol", "Ghent",
    "Bruges", "Utrecht", "Basel", "Turin", "Malaga", "Kiev", "Tunis", "Nairobi", "Accra",
)
COLOURS = (
    "red", "blue", "green", "yellow", "black", "white", "brown", "orange", "purple", "pink", "grey", "silver",
    "golden",
)
THINGS = (
    "bicycle", "car", "hat", "coat", "bag", "umbrella", "boat", "chair", "lamp", "scarf", "door", "guitar", "house",
    "cup", "kite", "tent", "jacket", "phone",
)
ANIMALS = (
    "dog", "cat", "horse", "parrot", "rabbit", "hamster", "goat", "turtle", "pony", "fish",
)
PETS = (
    "Rex", "Luna", "Milo", "Bella", "Coco", "Daisy", "Max", "Rocky", "Simba", "Nala", "Pepper", "Oreo", "Ziggy",
    "Toby", "Ginger", "Shadow", "Misty", "Buddy",
)
JOBS = (
    "teacher", "doctor", "baker", "farmer", "pilot", "nurse", "painter", "writer", "lawyer", "driver", "cook",
    "sailor", "singer", "carpenter", "gardener", "dentist", "engineer", "plumber", "librarian", "tailor",
)
FOODS = (
    "pizza", "soup", "rice", "pasta", "bread", "cheese", "fish", "salad", "cake", "apples", "pancakes", "noodles",
    "curry", "beans", "cherries", "honey",
)
ITEMS = (
    "apples", "books", "pens", "coins", "cards", "stamps", "marbles", "eggs", "cookies", "shells", "balls",
    "stickers", "pencils", "oranges", "keys",
)
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)
VEHICLES = (
    "train", "car", "bus", "plane", "boat", "bicycle", "taxi",
)
BUILDINGS = (
    "bridge", "museum", "library", "station", "school", "theatre", "tower", "church", "market", "castle",
)
INSTRUMENTS = (
    "piano", "guitar", "violin", "flute", "drums", "trumpet", "harp", "cello",
)
SPORTS = (
    "tennis", "football", "chess", "golf", "hockey", "rugby", "basketball", "volleyball",
)

_ONSETS = (
    "b", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "br", "dr", "gr", "kr", "st", "tr",
    "sh", "th",
)
_VOWELS = (
    "a", "e", "i", "o", "u",
)
_CODAS = (
    "", "", "", "n", "r", "l", "s", "m", "k", "x",
)


def invented_name(rng: Random) -> str:
    """A made-up proper name of two or three syllables, so that answers must be copied and not recalled."""
    parts = [rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(rng.choice((2, 2, 3)))]
    return ("".join(parts) + rng.choice(_CODAS)).capitalize()


def person(rng: Random) -> str:
    """A first name, one in four invented."""
    return invented_name(rng) if rng.random() < 0.25 else rng.choice(NAMES)


def place(rng: Random) -> str:
    """A town, one in four invented."""
    return invented_name(rng) if rng.random() < 0.25 else rng.choice(PLACES)


def people(rng: Random, count: int) -> list[str]:
    """`count` different first names."""
    found: list[str] = []
    while len(found) < count:
        name = person(rng)
        if name not in found:
            found.append(name)
    return found
