//! Asks the server how much CPU time it has used.
//!
//! Always true: a server that does not answer as expected costs at most a few seconds and never the run; the
//! report then says why the figure is missing.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// How long connecting, and each read and write, may take.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The largest answer that is read.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// CPU seconds of the server's process since its start.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct CpuSeconds {
    /// In all.
    pub total: f64,
    /// In its own code, if it says so.
    pub user: Option<f64>,
    /// In the kernel, if it says so.
    pub system: Option<f64>,
}

impl CpuSeconds {
    /// What was used since an earlier look.
    pub fn since(&self, earlier: &Self) -> Self {
        let difference = |now: Option<f64>, then: Option<f64>| Some(now? - then?);
        Self {
            total: self.total - earlier.total,
            user: difference(self.user, earlier.user),
            system: difference(self.system, earlier.system),
        }
    }
}

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The port cannot be talked to.
    #[error("{address}: {source}")]
    Unreachable {
        /// Where.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The answer is not what was asked for.
    #[error("{address}/metrics: {reason}")]
    Unexpected {
        /// Where.
        address: String,
        /// What is wrong.
        reason: String,
    },
}

/// Reads the server's CPU time from its metrics at `address` (host and port, with or without `http://`).
pub fn cpu_seconds(address: &str) -> Result<CpuSeconds, AdminError> {
    let address = address.strip_prefix("http://").unwrap_or(address).trim_end_matches('/');
    let answer = get_metrics(address)
        .map_err(|source| AdminError::Unreachable { address: address.to_owned(), source })?;
    parse_answer(&answer).map_err(|reason| AdminError::Unexpected { address: address.to_owned(), reason })
}

/// HTTP 1.0 keeps the answer simple: no chunks, and the connection's end is the answer's.
fn get_metrics(address: &str) -> io::Result<String> {
    let mut last_error = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for socket_address in address.to_socket_addrs()? {
        let mut stream = match TcpStream::connect_timeout(&socket_address, TIMEOUT) {
            Ok(stream) => stream,
            Err(error) => {
                last_error = error;
                continue;
            }
        };
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        write!(stream, "GET /metrics HTTP/1.0\r\nHost: {address}\r\nAccept: text/plain\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
        return Ok(String::from_utf8_lossy(&answer).into_owned());
    }
    Err(last_error)
}

fn parse_answer(answer: &str) -> Result<CpuSeconds, String> {
    let status = answer.lines().next().unwrap_or_default();
    if status.split(' ').nth(1) != Some("200") {
        return Err(format!("answered {status:?}"));
    }
    let metric = |name: &str| {
        answer.lines().find_map(|line| {
            let rest = line.strip_prefix(name)?;
            // Labels, if any, end in a brace; then comes the value, perhaps a timestamp.
            let rest = if rest.starts_with('{') { rest.rsplit_once('}')?.1 } else { rest };
            let value = rest.strip_prefix(' ')?.split_whitespace().next()?.parse::<f64>().ok()?;
            value.is_finite().then_some(value)
        })
    };
    let (user, system) =
        (metric("sidestep_cpu_user_seconds_total"), metric("sidestep_cpu_system_seconds_total"));
    let total = metric("process_cpu_seconds_total").or_else(|| Some(user? + system?));
    let total = total.ok_or("has no process_cpu_seconds_total")?;
    Ok(CpuSeconds { total, user, system })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn reads_prometheus_text() {
        let answer = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n# HELP process_cpu_seconds_total x\n\
                      process_cpu_seconds_total_more 9\nprocess_cpu_seconds_total 1.5\n\
                      sidestep_cpu_user_seconds_total{node=\"a } b\"} 1e0 1700000000\n\
                      sidestep_cpu_system_seconds_total 0.5\n";
        let now = parse_answer(answer).unwrap();
        assert_eq!(now, CpuSeconds { total: 1.5, user: Some(1.0), system: Some(0.5) });
        let earlier = CpuSeconds { total: 1.0, user: None, system: Some(0.25) };
        assert_eq!(now.since(&earlier), CpuSeconds { total: 0.5, user: None, system: Some(0.25) });
        for bad in
            ["", "HTTP/1.1 404 Not Found\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\nprocess_cpu_seconds_total NaN\n"]
        {
            assert!(parse_answer(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn talks_to_a_server_and_survives_none() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // All of the request is read, or closing would reset the connection under the answer.
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.extend_from_slice(&byte);
            }
            stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nprocess_cpu_seconds_total 3\n").unwrap();
            request
        });
        assert_eq!(cpu_seconds(&format!("http://{address}/")).unwrap().total, 3.0);
        assert!(server.join().unwrap().starts_with(b"GET /metrics HTTP/1.0\r\n"));
        assert!(cpu_seconds(&address).unwrap_err().to_string().contains(&address));
        assert!(cpu_seconds("nonsense").is_err());
    }
}
