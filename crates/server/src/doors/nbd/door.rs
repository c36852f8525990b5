//! One client's side of the protocol.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tapetum::Reply;

use super::access::NbdAccess;
use super::exports::Exports;
use super::negotiation::{NbdTls, Negotiated, Negotiation};
use super::protocol::handshake::GREETING;
use super::transmission::Transmission;
use crate::doors::connection::Client;
use crate::doors::context::Context;
use crate::doors::door::{Load, Step};
use crate::doors::open_keyspaces::OpenKeyspaces;
use crate::net::out::Pool;
use tapetum_access::gate::Gate;

/// The most clients over all listeners.
const CLIENTS_MAX: usize = 128;

/// The options of a listener, for all its clients.
#[derive(Clone)]
pub struct NbdOptions {
    pub exports: Arc<Exports>,
    /// Writes are durable when they are answered.
    pub is_durable_at_once: bool,
    /// Whether clients begin TLS before they say anything else.
    pub needs_tls: bool,
    pub gate: Option<Arc<Gate>>,
    clients: Arc<AtomicUsize>,
}

impl NbdOptions {
    pub fn new(exports: Exports, is_durable_at_once: bool) -> NbdOptions {
        NbdOptions {
            exports: Arc::new(exports),
            is_durable_at_once,
            needs_tls: false,
            gate: None,
            clients: Arc::default(),
        }
    }
}

enum Phase {
    Handshake(Negotiation),
    Transmission(Box<Transmission>),
}

pub struct Nbd {
    options: NbdOptions,
    phase: Phase,
    /// `None` until the client has said who it is, or cannot.
    access: Option<NbdAccess>,
    /// The export may not be used any more.
    is_taken_away: bool,
}

impl Drop for Nbd {
    fn drop(&mut self) {
        self.options.clients.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Nbd {
    /// A client that is still negotiating so long after it connected is closed.
    pub const READY_SECONDS: u32 = 10;

    pub fn open(options: &NbdOptions, client: &mut Client, pool: &mut Pool) -> Nbd {
        match options.clients.fetch_add(1, Ordering::Relaxed) {
            // The protocol has no message for it.
            CLIENTS_MAX.. => client.close(),
            _ => client.out.append(pool, |out| out.extend_from_slice(GREETING)),
        }
        let tls = if options.needs_tls { NbdTls::Needed } else { NbdTls::Absent };
        let phase = Phase::Handshake(Negotiation::new(tls));
        Nbd { options: options.clone(), phase, access: None, is_taken_away: false }
    }

    pub fn step(&mut self, input: &[u8], client: &mut Client, cx: &mut Context<'_>) -> Step {
        let negotiation = match &mut self.phase {
            Phase::Transmission(transmission) => {
                let may_go_on = |access: &mut NbdAccess| access.refresh(transmission.export());
                if self.is_taken_away || !self.access.as_mut().is_none_or(may_go_on) {
                    client.break_off();
                    return Step::Stop(0);
                }
                return transmission.step(input, client, cx);
            }
            Phase::Handshake(negotiation) => negotiation,
        };
        // Answers to options are small, but the client may not read them.
        if client.is_full(Load::default(), cx.limits, cx.budget) {
            return Step::Stop(0);
        }
        let offered = self.options.exports.offered();
        let exports = match negotiation.tls {
            NbdTls::Needed => Arc::default(),
            NbdTls::Absent | NbdTls::Begun => {
                let gate = self.options.gate.as_ref();
                self.access.get_or_insert_with(|| NbdAccess::of(gate, client)).offered(&offered)
            }
        };
        match client.out.append(cx.pool, |out| negotiation.step(input, &exports, out)) {
            Negotiated::Goes { taken_bytes, skip_bytes } => {
                client.frame_done(skip_bytes);
                Step::Took(taken_bytes)
            }
            Negotiated::NeedMore(bytes) => {
                client.need(bytes);
                Step::Stop(0)
            }
            Negotiated::StartsTls { taken_bytes } if taken_bytes < input.len() => {
                // Somebody on the way may have put it there, to be taken for what TLS protects.
                client.break_off();
                Step::Stop(taken_bytes)
            }
            Negotiated::StartsTls { taken_bytes } => {
                client.frame_done(0);
                client.begin_tls();
                Step::Stop(taken_bytes)
            }
            Negotiated::Ends { taken_bytes } => {
                client.close();
                Step::Stop(taken_bytes)
            }
            Negotiated::Serves { taken_bytes, export } => {
                client.frame_done(0);
                let statuses = negotiation.has_statuses(&export, &exports);
                let durable = self.options.is_durable_at_once;
                let transmission =
                    Transmission::new(export, negotiation.is_structured, statuses, durable, cx.seat.exchanges());
                self.phase = Phase::Transmission(Box::new(transmission));
                Step::Took(taken_bytes)
            }
        }
    }

    /// The store's keyspaces have changed.
    pub fn follow(&mut self, open: &OpenKeyspaces) {
        if let Phase::Transmission(transmission) = &mut self.phase {
            transmission.follow(open);
            let may_go_on = |access: &mut NbdAccess| access.look_up(transmission.export());
            self.is_taken_away |= !self.access.as_mut().is_none_or(may_go_on);
        }
    }

    pub fn complete(&mut self, number: u32, reply: &Reply, client: &mut Client, cx: &mut Context<'_>) {
        self.serving().complete(number, &reply.outcome, client, cx);
    }

    pub fn load(&self) -> Load {
        match &self.phase {
            Phase::Handshake(_) => Load::default(),
            Phase::Transmission(transmission) => transmission.load(),
        }
    }

    pub fn charge_bytes(&self, number: u32) -> usize {
        match &self.phase {
            Phase::Handshake(_) => 0,
            Phase::Transmission(transmission) => transmission.charge_bytes(number),
        }
    }

    pub fn recharge(&mut self, number: u32, bytes: usize) {
        self.serving().recharge(number, bytes);
    }

    pub fn needs_input(&self) -> bool {
        match &self.phase {
            Phase::Handshake(_) => true,
            Phase::Transmission(transmission) => transmission.needs_input(),
        }
    }

    pub fn has_work(&self) -> bool {
        matches!(&self.phase, Phase::Transmission(transmission) if transmission.has_work())
    }

    pub fn wants_turn(&self) -> bool {
        matches!(&self.phase, Phase::Transmission(transmission) if transmission.wants_turn())
    }

    pub fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Transmission(_))
    }

    fn serving(&mut self) -> &mut Transmission {
        match &mut self.phase {
            Phase::Handshake(_) => unreachable!("nothing is asked of the store before there is an export"),
            Phase::Transmission(transmission) => transmission,
        }
    }
}
