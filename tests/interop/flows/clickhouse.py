"""The engine of ClickHouse behind as much of its HTTP interface as the sink uses: statements go to the engine, rows after an
INSERT come as its format RowBinary. With the argument `fixed` tables are not changed. Prints its port, then answers each line of
standard input, a query, with a line of JSON.
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
refuses_changes = sys.argv[1:] == ["fixed"]


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
            if body.startswith(b"ALTER") and refuses_changes:
                raise PermissionError("Not enough privileges")
            session.query(body.decode())
            return
        rows = os.path.join(place, "rows")
        with open(rows, "wb") as file:
            file.write(body)
        token = parameters["insert_deduplication_token"]
        session.query(f"SET insert_deduplication_token = '{token}'")
        into, form = statement.rsplit(" FORMAT ", 1)
        if " FROM input(" not in into:
            # As it was sent, but that the rows come from a file instead of the connection.
            session.query(f"{into} FROM INFILE '{rows}' FORMAT {form}")
            return
        # The engine without a server takes no rows for input('types'): they come from file() with the same types.
        session.query(f"EXPLAIN AST {statement}")
        into, types = into.split(" FROM input(", 1)
        session.query(f"{into} FROM file('{rows}', '{form}', {types.removesuffix(')')})")

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_address[1], flush=True)
for query in sys.stdin:
    with lock:
        answer = str(session.query(query, "JSONCompact"))
        # A statement that is no question has no answer.
        print(json.dumps(json.loads(answer)["data"] if answer else []), flush=True)
server.shutdown()
