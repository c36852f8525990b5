//! The request path without sockets: packets in memory go in, and replies are shown instead of sent. For measurements, and
//! for whatever is to give the same answers.

use tapetum::{Ask, Error, Reply, Store};

use super::door::{Memcached, MemcachedOptions};
use crate::doors::connection::{Client, Connection};
use crate::doors::context::{Alone, unix_seconds};
use crate::doors::door::Door;
use crate::net::limits::Limits;
use crate::store::store_slot::StoreSlot;

/// One client and one worker's belongings. One thread at a time.
pub struct Packets {
    alone: Alone,
    connection: Connection,
    replies: Vec<Reply>,
    asks: Vec<Ask>,
}

impl Packets {
    pub fn new(store: &Store) -> Result<Packets, Error> {
        let seat = StoreSlot::new(store.clone()).seat()?;
        let door = Door::Memcached(Memcached::new(MemcachedOptions::default()));
        Ok(Packets {
            alone: Alone::new(seat, Limits::default(), 0),
            connection: Connection { client: Client::new(0, 0), door },
            replies: Vec::new(),
            asks: Vec::new(),
        })
    }

    /// Takes packets, whole requests of one protocol, until all are answered or one of them ends it, and shows `sent` the replies.
    pub fn take(&mut self, packets: &[u8], mut sent: impl FnMut(&[u8])) {
        let (mut taken, now) = (0, unix_seconds());
        loop {
            let mut context = self.alone.context(now);
            taken += self.connection.consume(&packets[taken..], &mut context);
            self.replies.clear();
            context.seat.poll(&mut self.replies);
            for reply in &self.replies {
                self.connection.complete(reply.token as u32, reply, &mut context);
            }
            context.seat.take_asks(&mut self.asks);
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
