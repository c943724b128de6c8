# A pipeline's image: onnxfuse ci and its reports, on runners without a GPU.
#   docker build -f examples/docker/ci.Dockerfile -t onnxfuse-ci .
#   docker run --rm -v "$PWD:/models" onnxfuse-ci --junit junit.xml
FROM python:3.12-slim
COPY dist/*.whl /tmp/
RUN pip install --no-cache-dir /tmp/*.whl && rm /tmp/*.whl
WORKDIR /models
ENTRYPOINT ["onnxfuse", "ci", "--no-bench"]
