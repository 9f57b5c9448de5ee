"""The checker behind jaxtyping in tests: beartype, with int accepted where float is asked, as the
language does.
"""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
