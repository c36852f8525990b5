//! A call of a client: the door's shared part, and who asks. Whatever a call has the store do, it asks for here.
//!
//! Threads: any; its work goes to threads of its own.

use std::ops::Deref;
use std::sync::Arc;

use arrow_schema::SchemaRef;
use tapetum_access::asker::Asker;
use tapetum_service::caller::Caller;
use tapetum_service::failure::Failure;
use tapetum_service::reply::Reply;
use tapetum_service::request::Request;
use tonic::Status;

use crate::answering::{DataStream, DoorShared, RowsWanted};

/// See the [module](self).
#[derive(Clone)]
pub struct Call {
    pub shared: Arc<DoorShared>,
    pub asker: Asker,
}

impl Deref for Call {
    type Target = Arc<DoorShared>;

    fn deref(&self) -> &Arc<DoorShared> {
        &self.shared
    }
}

impl Call {
    /// Does work that waits or computes, on a thread of its own.
    pub async fn on_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Call) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Status> {
        let call = self.clone();
        self.shared.on_thread(move |_| work(&call)).await
    }

    /// Answers a request, if the asker may have it done.
    ///
    /// # Errors
    /// As [`tapetum_access::served::Served::execute`].
    pub fn execute(&self, request: Request, caller: &mut dyn Caller) -> Result<(), Failure> {
        self.shared.served.execute(&self.asker, request, caller)
    }

    /// Asks for what is told in few replies.
    ///
    /// # Errors
    /// As [`Call::execute`].
    pub fn gather(&self, request: Request) -> Result<Vec<Reply>, Failure> {
        self.shared.served.gather(&self.asker, request)
    }

    /// The rows that a request is answered with.
    pub fn rows(&self, wanted: RowsWanted, schema: SchemaRef) -> DataStream {
        self.shared.rows(self.asker.clone(), wanted, schema)
    }
}
