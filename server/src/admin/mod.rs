//! The admin endpoint: what people and monitoring ask, over HTTP.
//!
//! Always true: it only reads; it works before the region is there, so that a slow start can be told from a dead
//! server.
//!
//! | path | answer |
//! | --- | --- |
//! | `/healthz` | 200 while the process lives |
//! | `/readyz` | 200 while clients are served, else 503: the region is being made, or the server is shutting down |
//! | `/metrics` | Prometheus text, format 0.0.4 |
//! | `/version` | JSON: version, formats, incarnation, fabrics with reasons, the published endpoint |

mod metrics;

use std::sync::Arc;

use axum::Router;
use axum::extract::State as Shared;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use serde_json::{Value, json};
use sidestep_common::layout::FORMAT_VERSION;
use sidestep_common::wire::PROTOCOL_VERSION;
use tokio::net::TcpListener;

use crate::node::{Node, State};

/// Serves at `listener` until the task is dropped.
pub async fn serve(node: Arc<Node>, listener: TcpListener) {
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .route("/version", get(version))
        .with_state(node);
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "the admin endpoint failed");
    }
}

async fn ready(Shared(node): Shared<Arc<Node>>) -> Response {
    match node.state() {
        State::Ready => "ready\n".into_response(),
        State::Starting => (StatusCode::SERVICE_UNAVAILABLE, "starting\n").into_response(),
        State::Draining | State::Stopped => (StatusCode::SERVICE_UNAVAILABLE, "draining\n").into_response(),
    }
}

async fn metrics(Shared(node): Shared<Arc<Node>>) -> Response {
    let content_type = (header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8");
    ([content_type], metrics::render(&node)).into_response()
}

async fn version(Shared(node): Shared<Arc<Node>>) -> Json<Value> {
    Json(describe(&node))
}

fn describe(node: &Node) -> Value {
    let serving = node.serving();
    let superblock = serving.map(|serving| serving.region.superblock);
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "protocol": PROTOCOL_VERSION,
        "format": FORMAT_VERSION,
        "endpoint": node.endpoint,
        // As hexadecimal text: 64 bits don't fit the numbers of many JSON readers.
        "incarnation": superblock.map(|superblock| format!("{:016x}", superblock.incarnation)),
        "atomicity_domain": superblock.map(|superblock| superblock.domain.to_string()),
        "region_bytes": superblock.map(|superblock| superblock.geometry.region_bytes),
        "memory": serving.map(|serving| serving.mapping.describe()),
        "commits": serving.map(|serving| serving.plan.commits()),
        "fabrics": serving.map(|serving| serving.plan.reasons().to_vec()),
    })
}
