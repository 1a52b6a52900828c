//! A client's way to a connection.
//!
//! Always true: it ends by the deadline, with a connection whose MTU and depth both sides agreed on, or with an error
//! and nothing left behind. The device is found by address; what was chosen by hand is turned into an address
//! first, and checked again when librdmacm has found its device.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use rdma_sys::rdma_cm_event_type::*;

use super::choice::{Chosen, choose};
use super::cm::{Event, EventChannel, Identifier, Parameters};
use super::completion_queue::CompletionQueue;
use super::context::Context;
use super::device::{self, active_mtu};
use super::error::VerbsError;
use super::fabric::{Agreed, INLINE_BYTES, VerbsFabric};
use super::flight::Flight;
use super::negotiate::{self, Mtu};
use super::private_data::{Accepted, Refusal, Request};
use super::queue_pair::{Capacity, QueuePair};
use super::region::ProtectionDomain;
use super::two_sided::{Inbox, MESSAGE_VERSION, Outbox, TwoSidedFabric};
use crate::fabric::{Commits, ConnectError, ConnectOptions, DeviceChoice, Fabric, FabricKind, Join, Ticket};

/// The part of a `Join` that is about verbs.
#[derive(Clone, Copy, Debug)]
struct Node {
    address: SocketAddr,
    ticket: Ticket,
    rkey: u32,
    base: u64,
    responder_depth: u8,
    mtu_bytes: u32,
    /// Commits that may be under way to the memory node's CPU; none if its card does them.
    two_sided_depth: Option<u8>,
}

/// Joins the data path that `join` describes.
///
/// # Errors
/// [`ConnectError`]; nothing is left behind.
pub fn connect(join: &Join, options: &ConnectOptions) -> Result<Box<dyn Fabric>, ConnectError> {
    let node = node(join, options)?;
    Ok(connect_node(node, options)?)
}

fn node(join: &Join, options: &ConnectOptions) -> Result<Node, ConnectError> {
    let unavailable = |reason: String| ConnectError::Unavailable { kind: FabricKind::Verbs, reason };
    let Join::Verbs { host, port, ticket, rkey, base, responder_depth, mtu_bytes, commits } = join else {
        return Err(unavailable(format!("the memory node offers {}", join.kind())));
    };
    let ip = match (host, options.peer) {
        (Some(host), _) => host.parse::<IpAddr>().map_err(|_| {
            unavailable(format!("the memory node's card has the address {host:?}, which is no IP address"))
        })?,
        (None, Some(peer)) => peer,
        (None, None) => {
            return Err(unavailable("the address of the memory node's card is not known".to_owned()));
        }
    };
    Ok(Node {
        address: SocketAddr::new(ip, *port),
        ticket: *ticket,
        rkey: *rkey,
        base: *base,
        responder_depth: *responder_depth,
        mtu_bytes: *mtu_bytes,
        two_sided_depth: two_sided_depth(*commits).map_err(unavailable)?,
    })
}

fn two_sided_depth(commits: Commits) -> Result<Option<u8>, String> {
    match commits {
        Commits::Atomics => Ok(None),
        Commits::TwoSided { version: MESSAGE_VERSION, depth: depth @ 1.. } => Ok(Some(depth)),
        Commits::TwoSided { version, depth } => Err(format!(
            "the memory node takes {depth} two-sided commits at once in messages of version {version}; this client \
             speaks version {MESSAGE_VERSION} and needs at least one"
        )),
    }
}

fn connect_node(node: Node, options: &ConnectOptions) -> Result<Box<dyn Fabric>, VerbsError> {
    let deadline = options.deadline;
    let events = EventChannel::new()?;
    let id = Identifier::new(&events)?;
    let chosen = own_address(&options.device, node.address.ip())?;

    id.resolve_address(chosen.as_ref().map(|chosen| chosen.address), node.address, left(deadline))?;
    expect(
        &events,
        deadline,
        "finding the memory node's address",
        RDMA_CM_EVENT_ADDR_RESOLVED,
        node.address,
    )?;
    let device = id.device_name().unwrap_or_default();
    check_device(&id, &device, chosen.as_ref())?;
    id.resolve_route(left(deadline))?;
    expect(
        &events,
        deadline,
        "finding the way to the memory node",
        RDMA_CM_EVENT_ROUTE_RESOLVED,
        node.address,
    )?;

    let context = Context::open(&device)?;
    let limits = device::limits(&context.attributes()?);
    let own_mtu = active_mtu(&context.port_attributes(id.port())?);
    // 0, and what is no MTU, stand for a node that did not say.
    let mtu = Mtu::from_bytes(node.mtu_bytes).map_or(own_mtu, |theirs| negotiate::mtu(own_mtu, theirs));
    let depth = negotiate::depth(limits.initiator_depth, u32::from(node.responder_depth));
    let (in_flight, slack) =
        queue_sizes(options.verbs_in_flight_max, limits.work_requests, limits.completions);
    let entries = Flight::queue_depth(in_flight, slack);

    let domain = ProtectionDomain::new(&context)?;
    let cells = VerbsFabric::cells(&domain, entries)?;
    let completions = CompletionQueue::new(&context, entries)?;
    // A receive for the answer to each commit that may be under way.
    let receives = node.two_sided_depth.map(|depth| usize::from(depth).min(in_flight));
    let boxes =
        |receives| Ok::<_, VerbsError>((Inbox::new(&domain, receives, 0)?, Outbox::new(&domain, entries)?));
    let boxes = receives.map(boxes).transpose()?;
    let receive_cq = boxes.as_ref().map_or(completions.raw(), |(inbox, _)| inbox.completions().raw());
    let capacity = Capacity {
        work_requests: entries as u32,
        receives: receives.unwrap_or(0) as u32,
        inline_bytes: INLINE_BYTES,
    };
    // SAFETY: queues of the same device, which the fabric drops after the queue pair.
    let queue_pair = unsafe { QueuePair::new(&domain, completions.raw(), receive_cq, capacity) }?;
    queue_pair.initialise(&id, None)?;
    if let Some((inbox, _)) = &boxes {
        inbox.post_all(&queue_pair)?;
    }

    let request = Request { mtu, ticket: node.ticket }.encode();
    id.connect(&Parameters {
        private_data: &request,
        responder_depth: 1,
        initiator_depth: depth,
        qp_number: queue_pair.number(),
    })?;
    let doing = "waiting for the memory node to accept";
    let response = expect(&events, deadline, doing, RDMA_CM_EVENT_CONNECT_RESPONSE, node.address)?;
    let accepted = Accepted::decode(&response.private_data).filter(|accepted| accepted.mtu <= mtu);
    let Some(accepted) = accepted else {
        return Err(VerbsError::Refused { reason: "the memory node's answer was not understood".to_owned() });
    };
    let depth = accepted.depth.min(depth);
    queue_pair.make_ready_to_receive(&id, accepted.mtu, 1, options.device.gid_index.map(u32::from))?;
    queue_pair.make_ready_to_send(&id, depth)?;
    id.establish()?;

    let description = format!(
        "verbs: {device} port {} to {}, MTU {}, {depth} READs outstanding, {} bytes inline, {in_flight} verbs in flight",
        id.port(),
        node.address,
        accepted.mtu.bytes(),
        queue_pair.inline_bytes(),
    );
    let agreed = Agreed {
        base: node.base,
        rkey: node.rkey,
        verbs_in_flight_max: in_flight,
        slack,
        buffer_limit_bytes: options.buffer_limit_bytes,
        description,
    };
    let fabric = VerbsFabric::new(queue_pair, id, events, completions, &domain, cells, agreed);
    Ok(match boxes {
        None => Box::new(fabric),
        Some((inbox, outbox)) => Box::new(TwoSidedFabric::new(fabric.with_outbox(outbox), inbox)),
    })
}

/// The address to connect from; none leaves it to the routing table. It must be of the peer's family.
fn own_address(choice: &DeviceChoice, peer: IpAddr) -> Result<Option<Chosen>, VerbsError> {
    if *choice == DeviceChoice::default() {
        return Ok(None);
    }
    let mut devices = device::list()?;
    if choice.gid_index.is_none() {
        for details in devices.iter_mut().filter_map(|device| device.details.as_mut().ok()) {
            for port in &mut details.ports {
                port.gids.retain(|entry| entry.gid.address().is_ipv4() == peer.is_ipv4());
            }
        }
    }
    Ok(Some(choose(&devices, choice, None)?))
}

fn check_device(id: &Identifier, device: &str, chosen: Option<&Chosen>) -> Result<(), VerbsError> {
    match chosen {
        Some(chosen) if chosen.device != device || chosen.port != id.port() => Err(VerbsError::OtherDevice {
            address: chosen.address.to_string(),
            wanted: format!("{} port {}", chosen.device, chosen.port),
            found: format!("{device} port {}", id.port()),
        }),
        _ => Ok(()),
    }
}

/// Verbs in flight and the slack for silent ones, within what the device has.
fn queue_sizes(wanted: usize, work_requests: u32, completions: u32) -> (usize, usize) {
    // Rare enough that a signal costs little, often enough that the queue need not be much longer.
    const SLACK: usize = 16;
    let device = match work_requests.min(completions) {
        0 => usize::MAX,
        most => most as usize,
    };
    let slack = SLACK.min(device / 2).max(1);
    (wanted.clamp(1, (device - slack).max(1)), slack)
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Waits for that event. Another one is the other side's answer, or the network's.
fn expect(
    events: &EventChannel,
    deadline: Instant,
    doing: &'static str,
    wanted: Type,
    address: SocketAddr,
) -> Result<Event, VerbsError> {
    loop {
        let event = events.wait(deadline, doing)?;
        if event.kind == wanted && event.status == 0 {
            return Ok(event);
        }
        return Err(match event.kind {
            RDMA_CM_EVENT_ADDR_CHANGE | RDMA_CM_EVENT_TIMEWAIT_EXIT => continue,
            RDMA_CM_EVENT_REJECTED => VerbsError::Refused { reason: refusal(&event, address) },
            _ if event.status == -libc::ETIMEDOUT => VerbsError::Timeout { doing },
            _ => VerbsError::Call {
                call: format!("{doing} ({address})"),
                reason: format!(
                    "{}: {}",
                    event.name(),
                    std::io::Error::from_raw_os_error(event.status.abs())
                ),
                errno: event.status.abs(),
            },
        });
    }
}

fn refusal(event: &Event, address: SocketAddr) -> String {
    // The InfiniBand specification's table of reasons: 8 is "invalid service ID", sent by the kernel itself.
    const NOBODY_LISTENS: i32 = 8;
    match Refusal::decode(&event.private_data) {
        Some(refusal) => refusal.text().to_owned(),
        None if event.status == NOBODY_LISTENS => format!("nobody listens at {address}"),
        None => format!("{address} rejected the request with reason {}", event.status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A memory node of another version, or one that grants nothing, is refused before anything is made.
    #[test]
    fn only_messages_that_are_understood_are_sent() {
        assert_eq!(two_sided_depth(Commits::Atomics), Ok(None));
        let two_sided = |version, depth| two_sided_depth(Commits::TwoSided { version, depth });
        assert_eq!(two_sided(MESSAGE_VERSION, 16), Ok(Some(16)));
        assert!(two_sided(MESSAGE_VERSION, 0).is_err());
        let error = two_sided(MESSAGE_VERSION + 1, 16).unwrap_err();
        assert!(error.contains("version 2") && error.contains("version 1"), "{error}");
    }

    #[test]
    fn queues_stay_within_the_device() {
        assert_eq!(queue_sizes(64, 16384, 32768), (64, 16));
        for (wanted, requests, completions) in
            [(4096, 64, 64), (4096, 16, 1 << 20), (1, 2, 2), (0, 0, 0), (9, 1, 1)]
        {
            let (in_flight, slack) = queue_sizes(wanted, requests, completions);
            assert!(in_flight >= 1 && slack >= 1, "{wanted} {requests} {completions}");
            if requests > 1 {
                assert!(
                    in_flight + slack <= requests.min(completions) as usize,
                    "{in_flight} {slack} of {requests}"
                );
            }
        }
    }
}
