//! A server that is asked, over whatever connection: its socket, or its Flight door.

use crate::caller::{Caller, Gathering};
use crate::failure::Failure;
use crate::reply::Reply;
use crate::request::Request;

/// A server that is asked, over whatever connection.
pub trait Asked {
    /// Asks, and hands the answer on to the caller.
    ///
    /// # Errors
    /// The server's, or of the connection.
    fn call(&mut self, request: &Request, caller: &mut dyn Caller) -> Result<(), Failure>;

    /// Asks for what is told in few replies.
    ///
    /// # Errors
    /// As [`Asked::call`].
    fn gather(&mut self, request: Request) -> Result<Vec<Reply>, Failure> {
        let mut gathering = Gathering::default();
        self.call(&request, &mut gathering)?;
        Ok(gathering.replies)
    }
}
