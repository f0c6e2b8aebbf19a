"""What customers ask, and the answers: 40 capitals, each asked for in eight ways."""

from __future__ import annotations

# fmt: off
CAPITALS = {
    "Argentina": "Buenos Aires", "Australia": "Canberra", "Austria": "Vienna",
    "Belgium": "Brussels", "Bolivia": "Sucre", "Brazil": "Brasilia", "Bulgaria": "Sofia",
    "Canada": "Ottawa", "Chile": "Santiago", "China": "Beijing", "Colombia": "Bogota",
    "Croatia": "Zagreb", "Cuba": "Havana", "Denmark": "Copenhagen", "Egypt": "Cairo",
    "Estonia": "Tallinn", "Finland": "Helsinki", "France": "Paris", "Germany": "Berlin",
    "Ghana": "Accra", "Greece": "Athens", "Hungary": "Budapest", "Iceland": "Reykjavik",
    "India": "New Delhi", "Iran": "Tehran", "Ireland": "Dublin", "Italy": "Rome", "Japan": "Tokyo",
    "Kenya": "Nairobi", "Lebanon": "Beirut", "Morocco": "Rabat", "Nepal": "Kathmandu",
    "Norway": "Oslo", "Peru": "Lima", "Poland": "Warsaw", "Portugal": "Lisbon", "Spain": "Madrid",
    "Sweden": "Stockholm", "Turkey": "Ankara", "Vietnam": "Hanoi",
}
# fmt: on
WORDINGS = (
    "What is the capital of {}?",
    "Which city is the capital of {}?",
    "I travel to {}. Where does its government sit?",
    "Name the capital of {}, please.",
    "We have booked a week in {}; what is its capital?",
    "{}: which city do its ministers meet in?",
    "Tell me where the parliament of {} is.",
    "Does {} have a capital, and what is it called?",
)
PAIRS = [
    (wording.format(country), capital)
    for country, capital in CAPITALS.items()
    for wording in WORDINGS
]
