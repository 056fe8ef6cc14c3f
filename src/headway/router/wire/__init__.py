"""Bytes: connections of clients and to engines, HTTP/1.1 read and written."""
