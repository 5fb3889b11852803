"""The verb `completion`, and the manual pages that `help --man` prints."""
