from django.db import models


class Order(models.Model):
    number = models.IntegerField(unique=True)
    reviewed = models.BooleanField(default=False)
