import io
from typing import Any

from django.conf import settings
from django.contrib import admin
from django.contrib.admin.views.decorators import staff_member_required
from django.http import HttpRequest, HttpResponse
from django.urls import path, re_path
from django.views.decorators.csrf import csrf_exempt

import celery_rabbit_delay

from .celery import app

page = celery_rabbit_delay.page(app, settings.SECRET_KEY)


@csrf_exempt  # the forms of the page have tokens of their own
@staff_member_required
def delays(request: HttpRequest, rest: str) -> HttpResponse:
    response = HttpResponse()

    def start(status: str, headers: list[tuple[str, str]], *error: Any) -> Any:
        response.status_code = int(status.split()[0])
        for name, value in headers:
            response.headers[name] = value
        return response.write

    environ = {
        **request.META,
        "SCRIPT_NAME": request.path.removesuffix(rest).rstrip("/"),
        "PATH_INFO": f"/{rest}",
        "REMOTE_USER": request.user.get_username(),
        "wsgi.input": io.BytesIO(request.body),
    }
    for part in page(environ, start):
        response.write(part)
    return response


urlpatterns = [
    path("admin/", admin.site.urls),
    re_path(r"^delays/(.*)$", delays),
]
