"""The engine of ClickHouse behind as much of its HTTP interface as the sink uses: statements go to the engine, rows after an
INSERT come as its format RowBinary. Prints its port, then answers each line of standard input, a query, with a line of JSON.
"""
import http.server
import json
import os
import sys
import tempfile
import threading
import urllib.parse

import chdb.session

place = tempfile.mkdtemp()
session = chdb.session.Session(os.path.join(place, "engine"))
lock = threading.Lock()
tokens = {}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        parameters = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            with lock:
                self.perform(parameters, body)
            status, text = 200, b""
        except Exception as error:
            status, text = 500, str(error).encode()
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text)

    def perform(self, parameters, body):
        statement = parameters.get("query")
        if statement is None:
            session.query(body.decode())
            return
        into, form = statement.rsplit(" FORMAT ", 1)
        rows = os.path.join(place, "rows")
        with open(rows, "wb") as file:
            file.write(body)
        # The engine has no client to read rows from: they come from a file instead of input('types').
        into, types = into.split(" FROM input(", 1)
        types = types.removesuffix(")")
        token = parameters["insert_deduplication_token"]
        session.query(f"{into} FROM file('{rows}', '{form}', {types}) SETTINGS insert_deduplication_token = '{token}'")

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_address[1], flush=True)
for query in sys.stdin:
    with lock:
        answer = session.query(query, "JSONCompact")
        print(json.dumps(json.loads(str(answer))["data"]), flush=True)
server.shutdown()
