//! Whoever asked: takes replies while the work goes on.

use tapetum_kernels::scan::Scalar;

use crate::reply::Reply;

/// The caller takes no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallerLeft;

/// Whoever asked, in this process or behind a socket. Used by the thread that does the work.
pub trait Caller {
    /// Takes a reply. An error ends the work.
    fn take(&mut self, reply: Reply) -> Result<(), CallerLeft>;

    /// Takes a row of the columns that came before. If it cannot, [`Caller::has_left`] says so from then on.
    fn row(&mut self, values: &[Option<Scalar<'_>>]);

    /// Whether nobody waits for the rest: asked every now and then while nothing is to be told.
    fn has_left(&mut self) -> bool;
}

/// Keeps what is told.
#[derive(Default)]
pub struct Gathering {
    pub replies: Vec<Reply>,
}

impl Caller for Gathering {
    fn take(&mut self, reply: Reply) -> Result<(), CallerLeft> {
        self.replies.push(reply);
        Ok(())
    }

    fn row(&mut self, _values: &[Option<Scalar<'_>>]) {}

    fn has_left(&mut self) -> bool {
        false
    }
}
