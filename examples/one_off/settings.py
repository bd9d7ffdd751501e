SECRET_KEY = "not one"
USE_TZ = True
INSTALLED_APPS = ["django_celery_beat"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "one_off.sqlite3"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
