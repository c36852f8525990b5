//! Text gets of many keys: one request a key, one reply for all, and a line that may be longer than a piece of the input.

use super::door::{ManyKeys, Memcached, ThenClose};
use crate::doors::connection::Client;
use crate::doors::context::Context;
use crate::protocol::many_keys::{self, MoreKeys};
use crate::protocol::reply::{self, Form};
use crate::protocol::text;
use tapetum::Expiry;

impl Memcached {
    /// Begins a text get: everything before its keys is taken.
    pub(super) fn many_start(
        &mut self,
        keys: &[u8],
        frame: &[u8],
        goes_on: bool,
        touch: Option<Expiry>,
        stamps: bool,
    ) -> usize {
        let end_bytes = if goes_on { 0 } else { text::line_end_bytes(frame) };
        self.many = Some(ManyKeys { list_bytes: keys.len(), end_bytes, goes_on, touch, stamps });
        frame.len() - end_bytes - keys.len()
    }

    /// Finds the next keys of a text get that goes on in `rest`; the bytes taken, `None` if more of them must come first.
    pub(super) fn find_more_keys(&mut self, rest: &[u8], client: &mut Client, cx: &mut Context<'_>) -> Option<usize> {
        match many_keys::more_keys(rest, self.scanned_bytes) {
            MoreKeys::NeedMore { total_bytes, scanned_bytes } => self.need_more(total_bytes, scanned_bytes, client),
            MoreKeys::List { list_bytes, end_bytes } => {
                self.frame_done(0, client);
                if let Some(many) = &mut self.many {
                    (many.list_bytes, many.end_bytes, many.goes_on) = (list_bytes, end_bytes, end_bytes == 0);
                }
                Some(0)
            }
            MoreKeys::Refused { complaint, consumed_bytes } => {
                self.frame_done(0, client);
                self.many = None;
                self.skipped_line = Some(ThenClose(false));
                self.answer(Form::TextGetEnd, client, cx, |out| out.extend_from_slice(complaint.as_bytes()));
                Some(consumed_bytes)
            }
        }
    }

    /// Submits the next key of a text get, or ends it; the bytes taken, `None` if it has to wait.
    pub(super) fn next_key(&mut self, rest: &[u8], client: &mut Client, cx: &mut Context<'_>) -> Option<usize> {
        let &ManyKeys { list_bytes, end_bytes, goes_on, touch, stamps } = self.many.as_ref()?;
        let list = &rest[..list_bytes];
        let Some(key) = text::split(list).next() else {
            if goes_on {
                self.many = Some(ManyKeys { list_bytes: 0, end_bytes, goes_on, touch, stamps });
                return Some(list_bytes);
            }
            self.many = None;
            self.answer(Form::TextGetEnd, client, cx, |out| out.extend_from_slice(reply::TEXT_GET_END));
            return Some(list_bytes + end_bytes);
        };
        let form = Form::TextGet { stamps, touch: touch.is_some() };
        self.get(form, key, touch, client, cx)?;
        let spaces = list.iter().take_while(|&&byte| byte == b' ').count();
        let taken = spaces + key.len();
        if let Some(many) = &mut self.many {
            many.list_bytes -= taken;
        }
        Some(taken)
    }
}
