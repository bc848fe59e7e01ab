import pytest

from gateway.batches.book import Batch, Book, Job
from gateway.batches.shared_book import PostgresBook, QueueAway


def batch(id="b", deadline_us=100, **given):
    return Batch(**{"id": id, "team": "t", "key_id": "k", "endpoint": "/x", "input": "f", "at_us": 1, "deadline_us": deadline_us, "status": "in_progress", **given})


@pytest.fixture(params=["disk", "database"])
def opened(request, tmp_path):
    """Opens the same book, again and again."""
    books = []

    def another():
        books.append(Book(tmp_path / "q.db") if request.param == "disk" else PostgresBook(request.getfixturevalue("postgres_url")))
        return books[-1]

    yield another
    if request.param == "database":
        with books[0]._change() as db:
            db.execute("TRUNCATE files, batches, calls, jobs")
    for each in books:
        each.close()


@pytest.fixture
def book(opened):
    return opened()


def test_the_nearest_deadline_is_next_and_order_is_kept(book):
    """Within a batch its own order, whatever the custom ids are."""
    assert book.put_batch(batch("late", 900), [("z", b"1"), ("a", b"2")], 10)
    assert book.put_batch(batch("soon", 100), [("c", b"3")], 10)
    assert [line.body for line in book.next(0, 10)] == [b"3", b"1", b"2"]


def test_what_is_taken_is_taken_once_and_comes_back_after_a_crash(book, opened):
    """A second connection sees the same."""
    book.put_batch(batch(), [("a", b"1"), ("b", b"2")], 10)
    first, second = book.next(0, 10)
    assert book.begin([first]) == [first]
    other = opened()
    assert other.begin([first, second]) == [second]
    other.again([second], not_before_us=50)
    assert (other.next(49, 10), len(other.next(50, 10))) == ([], 1)
    assert other.recover() == 1
    assert len(book.next(50, 10)) == 2


def test_more_than_fits_is_not_kept(book):
    """Not in part either."""
    assert not book.put_batch(batch(), [("a", b""), ("b", b"")], 1)
    assert (book.batches(), book.next(0, 10)) == ([], [])


def test_a_job_has_its_calls(book):
    """Until they are done or given back."""
    book.put_batch(batch(), [("a", b"1"), ("b", b"2")], 10)
    lines = book.next(0, 10)
    book.begin(lines, Job(id="j", lane="l", at_us=1, deadline_us=2, provider_id=None, status="sending", detail={"x": 1}))
    assert [job.detail for job in book.jobs()] == [{"x": 1}]
    book.finish(lines[0], "call", 200, b"{}")
    assert [line.n for line in book.of_job("j")] == [1]
    assert book.counts("b") == {"completed": 1, "sent": 1}
    book.set_job("j", status="done")
    assert book.jobs() == []


def test_a_status_changes_only_from_what_it_was(book):
    """Two that end a batch at once end it once."""
    book.put_batch(batch(), [("a", b"1")], 10)
    assert book.set_batch("b", ("in_progress",), status="completed", ended_us=5)
    assert not book.set_batch("b", ("in_progress",), status="cancelled")
    assert book.batches()[0].status == "completed"


def test_what_ended_long_ago_is_forgotten(book):
    """Files too, but not those that a batch still needs."""
    book.put_file("f", "t", "n", "batch", 1, b"x")
    book.put_file("g", "t", "n", "batch", 1, b"x")
    book.put_batch(batch(), [("a", b"1")], 10)
    book.put_batch(batch("old", ended_us=1, input="g"), [("a", b"1")], 10)
    book.prune(10)
    assert ([one.id for one in book.files("t")], [one.id for one in book.batches()]) == (["f"], ["b"])
    assert len(book.of_batch("old")) == 0


def test_a_database_that_is_away_is_told():
    """As something to try again, and not as a fault of the gateway."""
    book = PostgresBook("postgresql://gw@127.0.0.1:1/none")
    with pytest.raises(QueueAway):
        book.files("t")
    book.close()
