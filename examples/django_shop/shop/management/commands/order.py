from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction
from shop.models import Order
from shop.tasks import ask_for_review


class Command(BaseCommand):
    help = "Place an order, and have the customer asked for a review later."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("number", type=int)

    def handle(self, *args: Any, number: int, **options: Any) -> None:
        with transaction.atomic():
            Order.objects.create(number=number)
            # Sent when the transaction commits, which begins the delay; not sent if it is rolled back.
            ask_for_review.apply_async_on_commit((number,), countdown=3)
        self.stdout.write(f"Order {number} is placed.")
