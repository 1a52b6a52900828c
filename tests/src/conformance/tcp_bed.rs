//! The bed of the `tcp` fabric: a memory node that listens on the loopback interface.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;

use sidestep_common::fabric::tcp::TcpTarget;

use super::acceptor::Acceptor;
use super::{DEADLINE, TargetBed, conformance_mapping};

/// Makes beds of the `tcp` fabric.
pub struct TcpBed;

impl TcpBed {
    /// Starts a memory node in this process, with two threads that play the card.
    pub fn start() -> TargetBed {
        let mapping = conformance_mapping();
        let target = Arc::new(TcpTarget::start(Arc::clone(&mapping), 2).expect("threads"));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port of the loopback interface");
        let address = listener.local_addr().expect("a bound socket");
        target.advertise(None, address.port());
        let attached = Arc::clone(&target);
        let accept = move || {
            let stream = listener.accept().expect("a connection").0;
            stream.set_read_timeout(Some(DEADLINE)).expect("a time limit");
            stream
        };
        let acceptor = Acceptor::start(
            accept,
            // Fails if the client is gone already.
            move |stream| drop(attached.attach(stream)),
            move || drop(TcpStream::connect(address)),
        );
        TargetBed::new(target, mapping, Some(address.ip()), Box::new(acceptor))
    }
}
