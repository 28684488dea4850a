# The image of a node. Build it with `docker build --tag odradek .`; how to run it: docs/containers.md.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
# For what setup.py compiles (mypyc). Without a compiler the same modules run uncompiled, slower.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /source
# First what seldom changes, so that a changed source does not fetch all dependencies again. The environment is without
# pip and setuptools, which nothing needs at run time.
COPY pyproject.toml .
RUN python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\\n')" \
    >/requirements.txt \
 && python -m venv --without-pip /opt/odradek \
 && python -m pip --python /opt/odradek/bin/python install --no-cache-dir --requirement /requirements.txt
COPY . .
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . \
 && python -m pip --python /opt/odradek/bin/python install --no-cache-dir --no-deps /wheels/odradek-*.whl

FROM ${PYTHON_IMAGE}
# By number, so that Kubernetes can see that it is not root.
RUN install -d -o 10001 -g 10001 -m 0700 /var/lib/odradek /etc/odradek
COPY --from=build /opt/odradek /opt/odradek
# Defaults only of `serve`: a file of `node start` is not overridden. XDG_DATA_HOME makes
# /var/lib/odradek the data folder if no other one is named.
ENV PATH=/opt/odradek/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    XDG_DATA_HOME=/var/lib \
    ODRADEK_SERVE_DEFAULTS="listeners=PLAINTEXT://:9092 http.listen=0.0.0.0:8080 log.level=INFO"
USER 10001:10001
VOLUME /var/lib/odradek
EXPOSE 9092 8080
# A first start formats the folder; one after a power loss examines the logs, which may take minutes.
HEALTHCHECK --interval=5s --timeout=5s --start-period=600s --retries=3 \
    CMD ["odradek", "node", "ready"]
ENTRYPOINT ["odradek"]
CMD ["serve"]
