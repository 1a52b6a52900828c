//! The seam between the load generator and the client library.
//!
//! Always true: everything else in this crate knows only [`Connect`] and [`Store`]. Each worker thread has a
//! session of its own, so no lock lies on the path of an operation.

use std::time::Duration;

use sidestep_client::{Client, Endpoint, Error, KindStatistics, Session};

use crate::store::{Connect, Cost, Counters, Fabric, ServerFigures, Store, StoreError};

/// What a store must be found by, and be able to do.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Where it is.
    pub endpoint: Endpoint,
    /// The secret that its server asks for.
    pub token: Option<String>,
    /// The time that each operation has.
    pub timeout: Duration,
    /// The largest value that will be written, if it is known.
    pub value_bytes: Option<u64>,
}

/// Gets ready to open stores: reaches the server once.
pub fn connect(options: &StoreOptions) -> Result<Box<dyn Connect>, StoreError> {
    let endpoint = options.endpoint.to_string();
    let refused = |error: Error| connect_error(&endpoint, &error);
    let mut builder = Client::builder(&endpoint).map_err(refused)?.name("kvbench").timeout(options.timeout);
    if let Some(token) = &options.token {
        builder = builder.token(token);
    }
    if let Some(bytes) = options.value_bytes {
        builder = builder.require_value_bytes(usize::try_from(bytes).unwrap_or(usize::MAX));
    }
    let client = builder.connect().map_err(refused)?;
    Ok(Box::new(Sessions { client, endpoint }))
}

struct Sessions {
    client: Client,
    endpoint: String,
}

struct SessionStore {
    session: Session,
    fabric: Fabric,
}

impl Connect for Sessions {
    fn open(&self) -> Result<Box<dyn Store>, StoreError> {
        let refused = |error: Error| connect_error(&self.endpoint, &error);
        let mut session = self.client.session().map_err(refused)?;
        let (kind, description) = session.fabric().map_err(refused)?;
        let fabric = Fabric { name: kind.to_string(), description };
        Ok(Box::new(SessionStore { session, fabric }))
    }
}

impl Store for SessionStore {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, StoreError> {
        self.session.get_into(key, value).map_err(|error| operation_error("get", &error))
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.session.put(key, value).map_err(|error| operation_error("put", &error))
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, StoreError> {
        self.session.delete(key).map_err(|error| operation_error("delete", &error))
    }

    fn counters(&self) -> Counters {
        let statistics = self.session.statistics();
        Counters { get: cost(&statistics.get), put: cost(&statistics.put), delete: cost(&statistics.delete) }
    }

    fn fabric(&self) -> Fabric {
        self.fabric.clone()
    }

    fn server(&mut self) -> Result<ServerFigures, StoreError> {
        let server =
            self.session.server_statistics().map_err(|error| operation_error("asking the server", &error))?;
        Ok(ServerFigures {
            pool_bytes: server.block_pool_bytes,
            free_bytes: server.free_bytes,
            reserve_bytes: server.reserve_bytes,
            orphan_chunks: server.orphan_chunks,
            resident_bytes: server.resident_bytes,
            segments: server.segments_serving,
            rebuilds: server.rebuilds_total,
            splits: server.splits_total,
        })
    }
}

fn cost(kind: &KindStatistics) -> Cost {
    Cost {
        operations: kind.operations,
        round_trips: kind.round_trips,
        verbs: kind.verbs.saturating_sub(kind.silent_verbs),
        silent_verbs: kind.silent_verbs,
        retries: kind.retries,
        sent_bytes: kind.bytes_written,
        received_bytes: kind.bytes_read,
    }
}

fn connect_error(endpoint: &str, error: &Error) -> StoreError {
    let (endpoint, reason) = (endpoint.to_owned(), error.to_string());
    match error {
        Error::Unreachable { reason, .. } => StoreError::Unreachable { endpoint, reason: reason.clone() },
        _ if error.is_unreachable() => StoreError::Unreachable { endpoint, reason },
        _ => StoreError::Refused { reason },
    }
}

fn operation_error(operation: &'static str, error: &Error) -> StoreError {
    StoreError::Failed { operation, effect: error.effect(), reason: error.to_string() }
}
