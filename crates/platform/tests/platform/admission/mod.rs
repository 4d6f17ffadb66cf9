//! The admission server, over real TLS and asked by a real API server.

mod api_server;
mod draining;
mod handshakes;
mod limits;
mod protocol;
mod rolling;
mod scene;
