# A Triton server with one fused model: the first stage fuses, verifies and compiles on the CPU, the second one has no Python of ours.
#   docker build -f examples/docker/triton.Dockerfile --build-arg TRITON=IMAGE --build-arg MODEL=model.onnx -t served .
#   docker run --rm --gpus all -p 8000:8000 served
# TRITON: the server's image, with its ONNX Runtime backend of 1.24 or newer. ARCH: the GPUs that it will run on.
ARG TRITON
FROM python:3.12-slim AS fuse
COPY dist/*.whl /tmp/
RUN pip install --no-cache-dir "$(ls /tmp/*.whl)[nvrtc]"
ARG MODEL=model.onnx
ARG ARCH=sm_80,sm_90a
COPY ${MODEL} /work/model.onnx
WORKDIR /work
RUN onnxfuse optimize model.onnx fused.onnx --precision float16
RUN onnxfuse verify model.onnx fused.onnx --provider cpu
RUN onnxfuse export-library fused.onnx models/served --arch "$ARCH" --at /models/served

FROM ${TRITON}
COPY --from=fuse /work/models /models
CMD ["tritonserver", "--model-repository=/models"]
