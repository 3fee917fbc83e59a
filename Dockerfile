# One image for every service; compose.yaml says which one a container runs.
#
#   docker build -t pdd:llama .                          with the llama engine (compiled here, some minutes)
#   docker build --build-arg EXTRAS=sim -t pdd:sim .     with simulated engines only
#   docker build --build-arg EXTRAS=load -t pdd:load .   with locust
#
# The engine is compiled again when its version in pyproject.toml changes, not when code does. A wheel of it in deploy/wheels is
# taken in place of compiling it.

# Nothing of pyproject.toml but the requirements, so that no other change of it is one of the layers below.
FROM python:3.11-slim-bookworm AS requirements
WORKDIR /requirements
COPY pyproject.toml ./
RUN python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb')); print(*p['build-system']['requires'], *p['project']['dependencies'], sep='\n')" > base.txt
# Names from pyproject.toml's optional dependencies; sim needs none and is not among them.
ARG EXTRAS=llama
RUN python -c "import sys, tomllib; p = tomllib.load(open('pyproject.toml', 'rb')); print(*(d for e in sys.argv[1:] for d in p['project']['optional-dependencies'].get(e, [])), sep='\n')" ${EXTRAS} > extras.txt

FROM python:3.11-slim-bookworm AS dependencies
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ \
 && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/pdd
ENV PATH=/opt/pdd/bin:$PATH \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1
# The engine is compiled for the processor it is built on. For others add -DGGML_NATIVE=OFF, which is slower.
ARG CMAKE_ARGS="-DLLAVA_BUILD=OFF -DLLAMA_CURL=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_COMMON=OFF"
COPY deploy/wheels /wheels
COPY --from=requirements /requirements/extras.txt /requirements/
RUN CMAKE_ARGS="${CMAKE_ARGS}" CMAKE_BUILD_PARALLEL_LEVEL=2 pip install --find-links /wheels -r /requirements/extras.txt
COPY --from=requirements /requirements/base.txt /requirements/
RUN pip install -r /requirements/base.txt

FROM python:3.11-slim-bookworm
# libgomp: the llama engine's threads. /models is there so that a volume mounted on it is the user's.
RUN apt-get update \
 && apt-get install -y --no-install-recommends libgomp1 \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --create-home pdd \
 && install -d -o pdd -g pdd /models
COPY --from=dependencies /opt/pdd /opt/pdd
# One engine thread a process.
ENV PATH=/opt/pdd/bin:$PATH \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONUNBUFFERED=1 \
    OMP_NUM_THREADS=1
WORKDIR /src
COPY pyproject.toml README.md ./
COPY pdd pdd
COPY services services
COPY gateway gateway
COPY wan wan
COPY virtual virtual
RUN pip install --no-deps --no-build-isolation .
USER pdd
WORKDIR /home/pdd
CMD ["python", "-m", "gateway"]
