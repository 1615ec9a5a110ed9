"""Threads that take turns at a store, so that every interleaving of their calls can be tried."""

import threading


class Turns:
    """Lets threads make one call to their store at a time."""

    def __init__(self):
        self._waiting, self._go = {}, {}

    def wait(self):
        """Wait for the turn of this thread."""
        me = threading.get_ident()
        self._waiting[me].release()
        self._go[me].acquire()

    def run(self, jobs, choices):
        """Run jobs to their ends; each choice says which of those under way goes on."""
        errors, threads, over = [], [], set()

        def work(job, index):
            try:
                self.wait()
                job()
            except BaseException as error:  # noqa: BLE001 raised below
                errors.append(error)
            finally:
                over.add(index)
                self._waiting[threading.get_ident()].release()

        begun = threading.Semaphore(0)

        def start(job, index):
            me = threading.get_ident()
            self._waiting[me], self._go[me] = threading.Semaphore(0), threading.Semaphore(0)
            begun.release()
            work(job, index)

        for index, job in enumerate(jobs):
            threads.append(threading.Thread(target=start, args=(job, index)))
            threads[-1].start()
            begun.acquire()
            self._waiting[threads[-1].ident].acquire()
        choices = iter(choices)
        while left := [index for index in range(len(jobs)) if index not in over]:
            me = threads[left[next(choices, 0) % len(left)]].ident
            self._go[me].release()
            self._waiting[me].acquire()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]


class SteppedStore:
    """A store of which each call waits for its turn."""

    def __init__(self, store, turns):
        self._store, self._turns = store, turns
        self.connections = 1

    def __getattr__(self, name):
        value = getattr(self._store, name)
        if not callable(value):
            return value

        def call(*arguments):
            self._turns.wait()
            found = value(*arguments)
            return list(found) if name == "list" else found

        return call
