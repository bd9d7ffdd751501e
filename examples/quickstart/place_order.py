"""Sends one delayed task: python place_order.py"""

from shop import ask_for_review

ask_for_review.apply_async((42,), countdown=5)
print("Order 42 is placed. The worker will ask for a review in 5 s.")
