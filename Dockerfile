# One image for every service; compose.yaml says which one a container runs.
#
#   docker build -t pdd:local .                          with the llama engine (compiled here, some minutes)
#   docker build --build-arg EXTRAS= -t pdd:local .      with simulated engines only

FROM python:3.11-slim-bookworm AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ \
 && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/pdd
ENV PATH=/opt/pdd/bin:$PATH \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1
# The engine is compiled for the processor it is built on. For others add -DGGML_NATIVE=OFF, which is slower.
ARG CMAKE_ARGS="-DLLAVA_BUILD=OFF -DLLAMA_CURL=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_COMMON=OFF"
ARG EXTRAS=llama
WORKDIR /src
# Dependencies before the source, so that a change of code does not compile the engine again.
COPY pyproject.toml ./
RUN python -c "import sys, tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; print('\n'.join(p['dependencies'] + [d for e in sys.argv[1:] for d in p['optional-dependencies'][e]]))" ${EXTRAS} > requirements.txt \
 && CMAKE_ARGS="${CMAKE_ARGS}" CMAKE_BUILD_PARALLEL_LEVEL=2 pip install -r requirements.txt
COPY README.md ./
COPY pdd pdd
COPY services services
COPY gateway gateway
COPY wan wan
RUN pip install --no-deps .

FROM python:3.11-slim-bookworm
# libgomp: the llama engine's threads.
RUN apt-get update \
 && apt-get install -y --no-install-recommends libgomp1 \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --create-home pdd
COPY --from=build /opt/pdd /opt/pdd
# One engine thread a process.
ENV PATH=/opt/pdd/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    OMP_NUM_THREADS=1
USER pdd
WORKDIR /home/pdd
CMD ["python", "-m", "gateway"]
