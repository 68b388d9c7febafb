"""An HTTP endpoint to try the tool with: `python3 warehouse.py` listens on 127.0.0.1:8899."""

import json
from http.server import BaseHTTPRequestHandler, HTTPServer

STOCK = {"bolt": 1200, "nut": 900}


class Warehouse(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        article = self.path.rpartition("/")[2]
        body = json.dumps({"article": article, "stock": STOCK.get(article, 0)}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    HTTPServer(("127.0.0.1", 8899), Warehouse).serve_forever()
