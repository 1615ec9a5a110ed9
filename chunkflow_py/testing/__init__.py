"""Test suites for extensions. A test class inherits a suite, and pytest runs the suite's tests.

| to test        | inherit                                               | define                  |
|----------------|-------------------------------------------------------|-------------------------|
| an operator    | `operator_contract.OperatorContract`                  | ``command``             |
| a volume       | `volume_contract.LocalContract`                       | ``scheme``, ``checked`` |
| a store        | `store_contract.StoreContract`                        | fixture ``url``         |
| a queue        | `queue_contract.QueueContract`                        | fixture ``url``         |
| a backend      | `backend_contract.BackendContract`                    | fixture ``backend``     |

For example, a test file of a package with an operator ``invert``:

    from chunkflow_py.testing.operator_contract import OperatorContract
    from my_package.invert import command

    class TestInvert(OperatorContract):
        command = command

The suites need pytest and hypothesis (``pip install 'chunkflow_py[testing]'``). To see the
values in failing asserts of the suites, call
``pytest.register_assert_rewrite("chunkflow_py.testing")`` in conftest.py before the suites are
imported.
"""
