"""The paper's tables as data, and the measurements that are compared with them."""
