#!/bin/sh
# A team behind Open WebUI: `pip install open-webui`, `manyhands serve`, then run this with the address.
# Its models are those of the server, a team is one of them. Asked here is Open WebUI's own server, as its page asks it;
# to use the page, leave out WEBUI_AUTH and OFFLINE_MODE, and open it in a browser.
set -eu
address=${1:-http://127.0.0.1:8000}
DATA_DIR=$(mktemp -d)
port=$(python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export DATA_DIR OPENAI_API_BASE_URL="$address/v1" OPENAI_API_KEY=any ENABLE_OLLAMA_API=false
export WEBUI_AUTH=false WEBUI_SECRET_KEY=of-this-run-alone OFFLINE_MODE=true
open-webui serve --host 127.0.0.1 --port "$port" > "$DATA_DIR/log" 2>&1 &
server=$!
trap 'kill $server' EXIT
here=http://127.0.0.1:$port
until curl --silent --fail "$here/health" > "$DATA_DIR/health"; do
    kill -0 $server || { tail -n 5 "$DATA_DIR/log"; exit 1; }
    sleep 1
done
token=$(curl --silent "$here/api/v1/auths/signin" --json '{"email": "", "password": ""}' \
    | python -c 'import json, sys; print(json.load(sys.stdin)["token"])')
curl --silent --fail "$here/api/models" --header "Authorization: Bearer $token" \
    | python -c 'import json, sys; print(*(model["id"] for model in json.load(sys.stdin)["data"]))'
curl --silent --fail --no-buffer "$here/api/chat/completions" --header "Authorization: Bearer $token" --json '{
  "model": "bundled:hogwild-2", "stream": true, "messages": [{"role": "user", "content":
  "Solve these problems and box the answers in order, separated by commas:\n1. 84 + 29 - 38\n2. 17 + 60 - 31"}]}' \
    | python -c '
import json, sys
for line in sys.stdin:
    if line.startswith("data: {"):
        for choice in json.loads(line[6:])["choices"]:
            print(choice["delta"].get("reasoning_content") or choice["delta"].get("content") or "", end="")
print()'
