"""A server that does as the name of its model says; the first line of its log is what it was started with."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time

from aiohttp import web

VARIABLES = (
    *("CUDA_VISIBLE_DEVICES", "PDPLUGINS_CONFIG", "SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE", "SGLANG_HOST_IP"),
    *("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "UCX_NET_DEVICES"),
)


def allowed(args: argparse.Namespace, request: web.Request) -> bool:
    admin = request.path == "/abort_request" and args.admin_api_key
    key = args.admin_api_key if admin else args.api_key
    return not key or request.path == "/health" or request.headers.get("authorization") == f"Bearer {key}"


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--model-path", "--host", "--disaggregation-mode", "--api-key", "--admin-api-key"):
        parser.add_argument(name)
    for name in ("--port", "--disaggregation-bootstrap-port"):
        parser.add_argument(name, type=int)
    args, _ = parser.parse_known_args()
    env = {name: os.environ.get(name) for name in VARIABLES}
    argv = [word for word in sys.argv[1:] if word not in (args.api_key, args.admin_api_key)]
    sys.stdout.write(json.dumps({"pid": os.getpid(), "argv": argv, "env": env}) + "\n")
    sys.stdout.flush()
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, force=True)
    logging.info("server_args=%s", args)  # as SGLang does, with its keys
    if args.model_path == "broken" and args.disaggregation_mode == "decode":
        sys.exit("OSError: there is no model broken")
    if args.model_path == "slow":
        time.sleep(600)

    async def answer(request: web.Request) -> web.Response:
        if not allowed(args, request):
            return web.json_response({"error": "Unauthorized"}, status=401)
        if request.path == "/server_info":
            port = args.disaggregation_bootstrap_port
            info = {"disaggregation_mode": args.disaggregation_mode, "disaggregation_bootstrap_port": port}
            return web.json_response(info | {"api_key": args.api_key, "model_path": "/some/folder/tiny"})
        if request.path == "/v1/loads":
            return web.json_response({"loads": [{"max_total_num_tokens": 100_000}]})
        if request.path == "/generate":
            body = json.loads(await request.read())
            return web.json_response({"by": args.disaggregation_mode, "bootstrap_port": body["bootstrap_port"]})
        return web.json_response({})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    web.run_app(app, host=args.host, port=args.port, print=None, access_log=None)


main()
