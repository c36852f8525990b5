//! The request path without sockets: packets in memory go in, and replies are shown instead of sent. For measurements, and
//! for whatever is to give the same answers.

use tapetum::{Ask, Reply};

use super::door::Memcached;
use super::pipeline::Pipeline;
use crate::net::connection::{Client, Connection};
use crate::net::context::Alone;
use crate::net::limits::Limits;
use crate::net::worker::unix_seconds;
use crate::store::engine::Session;

/// One client and one worker's belongings. One thread at a time.
pub struct Packets<S> {
    alone: Alone<S, Pipeline>,
    connection: Connection<Memcached>,
    replies: Vec<Reply>,
    asks: Vec<Ask>,
}

impl<S: Session> Packets<S> {
    pub fn new(session: S) -> Packets<S> {
        Packets {
            alone: Alone::new(session, Limits::default(), 0),
            connection: Connection { client: Client::new(0, 0), door: Memcached::default() },
            replies: Vec::new(),
            asks: Vec::new(),
        }
    }

    /// Takes packets, whole requests of one protocol, until all are answered or one of them ends it, and shows `sent` the replies.
    pub fn take(&mut self, packets: &[u8], mut sent: impl FnMut(&[u8])) {
        let (mut taken, now) = (0, unix_seconds());
        loop {
            let mut context = self.alone.context(now);
            taken += self.connection.consume(&packets[taken..], &mut context);
            self.replies.clear();
            context.session.poll(&mut self.replies);
            for reply in &self.replies {
                self.connection.complete(reply.token as u32, reply, &mut context);
            }
            context.session.take_asks(&mut self.asks);
            for Ask { token, value_bytes } in self.asks.drain(..) {
                self.connection.ask(token as u32, value_bytes, &mut context);
            }
            self.connection.allow_asked(&mut context);
            self.connection.client.out.pieces().for_each(&mut sent);
            self.connection.client.out.clear(&mut self.alone.pool);
            let over = taken == packets.len() || self.connection.client.closing;
            if over && self.connection.pending() == 0 {
                return self.connection.client.release(&self.alone.budget, &mut self.alone.pool);
            }
        }
    }
}
