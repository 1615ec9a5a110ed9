"""Suites of tests for what others add: inherit one, and pytest runs all its promises.

| to add         | inherit                                               | say                     |
|----------------|-------------------------------------------------------|-------------------------|
| an operator    | `operator_contract.OperatorContract`                  | ``command``             |
| a volume       | `volume_contract.LocalContract`, or `VolumeContract`  | ``scheme``, ``create``  |
| a store        | `store_contract.StoreContract`                        | ``store``               |
| a queue        | `queue_contract.QueueContract`, `queue_model`         | ``url``                 |
| a backend      | `backend_contract.BackendContract`                    | ``make``                |

For example, in a file of tests of a package with an operator ``invert``:

    from chunkflow_py.testing.operator_contract import OperatorContract
    from my_package.invert import command

    class TestInvert(OperatorContract):
        command = command

The suites need pytest and hypothesis (``pip install 'chunkflow_py[testing]'``). To let pytest show
the values of failing asserts, write ``pytest.register_assert_rewrite("chunkflow_py.testing")`` into
conftest.py before the suites are imported.
"""
